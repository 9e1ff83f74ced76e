"""What a run of a base model needs of a device's memory, by the model's config alone.

plan = make_plan("Qwen/Qwen3-8B", RunConfig(…), Device("cuda", 80 * GIB))
plan.fits, plan.micro_batch_tokens, plan.remedies
"""

from dataclasses import dataclass

from gavel.trainer.learner.step_bytes import checkpoints_by_default
from gavel.trainer.memory_needs import Device as Device
from gavel.trainer.memory_needs import MemoryNeeds
from gavel.trainer.memory_remedies import remedies
from gavel.trainer.policy.loading import published_quantization
from gavel.trainer.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All in bytes unless a name says otherwise."""

    model: str
    family: str
    device: str
    device_bytes: int
    dtype: str
    quantization: str | None
    published: str | None
    """How the weights are published quantized, such as gptq; they are counted as if they were of `dtype`."""
    parameters: int
    adapter_parameters: int
    adapted_layers: int
    base: int
    adapter_and_optimizer: int
    """The adapter, its gradient and AdamW's state."""
    context: int
    """Tokens of a conversation."""
    group_size: int
    largest_group: int
    """Unique tokens of a group whose members share half of the context."""
    sampler: str
    sampler_bytes: int
    """Of the embedded engine: its caches and merged weights, its base is the learner's; of vLLM its whole share."""
    cache_per_conversation: int
    conversations: int
    """Sampled at once."""
    checkpointing: bool
    """What the run would use."""
    pass_checkpointed: int
    """A pass of the learner over `micro_batch_tokens`, with gradient checkpointing."""
    pass_whole: int
    """Without."""
    all_logits: int
    """What all logits of such a pass would be in float32; they are never held."""
    micro_batch_tokens: int
    """Those that the run would use."""
    whole_pass_tokens: int | None
    """Up to so many tokens a pass is computed without checkpointing, with which larger ones are; None: all or none."""
    fitting_tokens: int
    """The largest micro-batch that fits."""
    needed: int
    """Everything at once."""
    missing: int
    """What the device lacks, or vLLM's share of it."""
    fits: bool
    remedies: list[str]
    """What to set, the least costly first, and how much it helps."""


def make_plan(base_model: str, run: RunConfig, device: Device) -> MemoryPlan:
    """Raises `BaseModelError` for a model whose config cannot be read or that cannot be trained."""
    needs = MemoryNeeds(base_model, device)
    policy, found = needs.policy(run), needs.of(run)
    train = run.train
    passes = {on: needs.passes(run, checkpointing=on) for on in (True, False)}
    whole = passes[False].tokens(found.left) if train.whole_pass_tokens is None else train.whole_pass_tokens
    by_size = train.gradient_checkpointing is None and checkpoints_by_default(device.kind) is None
    return MemoryPlan(
        model=base_model,
        family=needs.config.model_type,
        device=device.kind,
        device_bytes=device.total,
        dtype=str(policy.dtype).removeprefix("torch."),
        quantization=run.model.policy.quantization,
        published=published_quantization(needs.config),
        parameters=policy.parameter_count,
        adapter_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        adapted_layers=len(policy.parameters()) // 2,
        base=found.base,
        adapter_and_optimizer=4 * found.adapter,
        context=found.context,
        group_size=run.loop.group_size,
        largest_group=found.context // 2 + run.loop.group_size * (found.context - found.context // 2),
        sampler=found.sampler.name,
        sampler_bytes=found.sampler.held,
        cache_per_conversation=found.sampler.conversation,
        conversations=found.sampler.conversations,
        checkpointing=found.checkpointing,
        pass_checkpointed=passes[True].of(found.longest) - 3 * found.adapter,
        pass_whole=passes[False].of(found.longest) - 3 * found.adapter,
        all_logits=4 * found.longest * policy.vocabulary,
        micro_batch_tokens=found.micro_batch_tokens,
        whole_pass_tokens=min(whole, found.micro_batch_tokens) if by_size else None,
        fitting_tokens=passes[found.checkpointing].tokens(found.left),
        needed=found.needed,
        missing=found.missing,
        fits=not found.missing,
        remedies=remedies(needs, run) if found.missing else [],
    )
