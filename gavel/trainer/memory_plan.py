"""What a run of a base model needs of a device's memory, by the model's config alone.

    plan = make_plan("Qwen/Qwen3-8B", RunConfig(…), Device("cuda", 80 * GIB))
    plan.fits, plan.micro_batch_tokens, plan.remedies

Base, adapter and caches are counted on the meta device, and the learner's passes by running them there: see
`learner_bytes`. Of a device's memory `MARGIN` is left for what is not a tensor (the CUDA context, fragments).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from gavel.trainer.config import VllmSettings
from gavel.trainer.device_memory import GIB
from gavel.trainer.engines.kv_cache import SHARE_OF_MEMORY, shared_context, slot_bytes
from gavel.trainer.learner.step_bytes import MARGIN, PassBytes, checkpoints_by_default, fitting_tokens
from gavel.trainer.memory.learner_bytes import learner_bytes
from gavel.trainer.memory.meta_run import as_on
from gavel.trainer.memory.planned_policy import PlannedPolicy
from gavel.trainer.policy.adapted_weight import adapted_weights
from gavel.trainer.policy.families import why_unbatched
from gavel.trainer.policy.loading import dtype_of, published_quantization, text_decoder
from gavel.trainer.policy.policy import load_config
from gavel.trainer.run_config import RunConfig

_LEAST_CONTEXT = 1024
_WORTH_IT = 0.7
"""Of the base's bytes: 4 bits are a remedy below this share."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device to plan for."""

    kind: Literal["cpu", "cuda"]
    total: int
    """Bytes."""


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
    fits: bool
    remedies: list[str]
    """What to set, the most useful first."""


def make_plan(base_model: str, run: RunConfig, device: Device) -> MemoryPlan:
    """Raises `BaseModelError` for a model whose config cannot be read or that cannot be trained."""
    config = load_config(base_model)
    model, backend, train = run.model, run.backend, run.train
    quantized = model.policy.quantization is not None
    policy = PlannedPolicy(config, model.lora, dtype_of(model.policy, device.kind), quantized=quantized)
    usable = round(device.total * (1 - MARGIN))
    base, adapter = policy.base_bytes, sum(parameter.nbytes for parameter in policy.parameters())
    if backend.shard_base:  # of a layer every process holds its part, and the layer while it is computed
        base += max(policy.layer_bytes) - sum(policy.layer_bytes) * (backend.processes - 1) // backend.processes
    on = train.gradient_checkpointing
    if on is None:
        on = checkpoints_by_default(device.kind)
    checkpointing = on is not False
    context = _context(policy, run, device, usable - base - adapter)
    passes = {on: learner_bytes(policy, device=device.kind, checkpointing=on) for on in (True, False)}
    sampler = _sampler(policy, config, run, context, device, usable - base - adapter)
    left = usable - base - adapter - sampler.held
    tokens = train.micro_batch_tokens or fitting_tokens(passes[checkpointing], left / (1 - MARGIN), device.kind)
    whole = passes[False].tokens(left) if train.whole_pass_tokens is None else train.whole_pass_tokens
    longest = max(tokens, context)  # a longer sequence is a micro-batch of its own
    needed = base + adapter + sampler.held + passes[checkpointing].of(longest)
    fits = needed <= usable and sampler.conversations > 0
    return MemoryPlan(
        model=base_model,
        family=config.model_type,
        device=device.kind,
        device_bytes=device.total,
        dtype=str(policy.dtype).removeprefix("torch."),
        quantization=model.policy.quantization,
        published=published_quantization(config),
        parameters=policy.parameter_count,
        adapter_parameters=sum(parameter.numel() for parameter in policy.parameters()),
        adapted_layers=len(policy.parameters()) // 2,
        base=base,
        adapter_and_optimizer=4 * adapter,
        context=context,
        group_size=run.loop.group_size,
        largest_group=context // 2 + run.loop.group_size * (context - context // 2),
        sampler=sampler.name,
        sampler_bytes=sampler.held,
        cache_per_conversation=sampler.conversation,
        conversations=sampler.conversations,
        checkpointing=checkpointing,
        pass_checkpointed=passes[True].of(longest) - 3 * adapter,
        pass_whole=passes[False].of(longest) - 3 * adapter,
        all_logits=4 * longest * policy.vocabulary,
        micro_batch_tokens=tokens,
        whole_pass_tokens=min(whole, tokens) if on is None else None,
        fitting_tokens=passes[checkpointing].tokens(left),
        needed=needed,
        fits=fits,
        remedies=[] if fits else _remedies(run, policy, device.kind, left, context, passes, checkpointing),
    )


@dataclass(frozen=True, slots=True)
class _Sampler:
    name: str
    held: int
    conversation: int
    conversations: int


def _context(policy: PlannedPolicy, run: RunConfig, device: Device, free: int) -> int:
    """By the rules of the backend: the model's own, bounded by memory, where none is asked for."""
    most, asked = policy.max_context, run.backend.max_context
    if asked is not None or run.backend.engine != "transformers":
        return min(asked or most, most)
    with as_on(device.kind), policy.model.disable_adapter():
        longest = slot_bytes(_Plain(policy), most)
    share = max(0, round(free * SHARE_OF_MEMORY[device.kind]))
    return shared_context(share, most, run.backend.slots, longest, device.kind)


def _sampler(policy: PlannedPolicy, config: Any, run: RunConfig, context: int, device: Device, free: int) -> _Sampler:
    """By the rules of the engines: the embedded one's cache grows into a quarter of what is free, vLLM has a share."""
    with as_on(device.kind), policy.model.disable_adapter():
        conversation = slot_bytes(_Plain(policy), context)
    engine = run.backend.engine
    if engine != "transformers":
        vllm = engine if isinstance(engine, VllmSettings) else VllmSettings()
        elsewhere = bool(vllm.addresses) or vllm.sleep or device.kind == "cpu"
        share = 0 if elsewhere else round(device.total * vllm.gpu_memory_utilization)
        fitting = max(0, share - policy.base_bytes) // conversation
        return _Sampler("vLLM", share, conversation, min(run.backend.slots, fitting) if share else run.backend.slots)
    versions = run.loop.max_staleness + 1 + run.backend.earlier_policies
    if policy.dtype == torch.float32 and run.model.policy.quantization is None:
        adapters = versions * sum(each.weight.nbytes for each in adapted_weights(policy.model.get_base_model()))
    else:
        adapters = sum(parameter.nbytes for parameter in policy.parameters()) * versions
    slots = max(1, min(run.backend.slots, round((free - adapters) * SHARE_OF_MEMORY[device.kind]) // conversation))
    alone = ", one conversation at a time" if why_unbatched(config, context) else ""
    return _Sampler(f"embedded{alone}", adapters + slots * conversation, conversation, slots)


class _Plain:
    """What `slot_bytes` asks of a model."""

    def __init__(self, policy: PlannedPolicy) -> None:
        self.device = torch.device("meta")
        self._policy = policy

    def get_decoder(self) -> Any:
        return text_decoder(self._policy.model.get_base_model())


def _remedies(
    run: RunConfig,
    policy: PlannedPolicy,
    device: str,
    left: int,
    context: int,
    passes: dict[bool, PassBytes],
    checkpointing: bool,
) -> list[str]:
    """Options of `gavel train` with which it may fit, the least costly first. `left`: bytes for the learner."""
    found: list[str] = []
    if not checkpointing and passes[True].tokens(left) >= context:
        found.append("--gradient-checkpointing")
    possible = max(passes[on].tokens(left) for on in {checkpointing, True})
    if context <= possible < (run.train.micro_batch_tokens or 0):
        found.append(f"--micro-batch-tokens {possible // 256 * 256 or possible}")
    if _LEAST_CONTEXT <= possible < context:
        found.append(f"--max-context {possible // 256 * 256}")
    if run.model.policy.quantization is None and policy.quantized_bytes < _WORTH_IT * policy.base_bytes:
        found.append(f"--quantization 4bit: the base takes {policy.quantized_bytes / GIB:.1f} GiB")
    engine = run.backend.engine
    if engine == "vllm" and device == "cuda":
        found.append("--set backend.engine.sleep=true: vLLM hands its memory over while the learner computes")
    if device == "cuda" and not run.backend.shard_base and not policy.largest_dequantized and policy.spans is not None:
        found.append("--shard-base --nproc 2 (or more GPUs) --engine http://HOST:8000, a vLLM server elsewhere")
    return found or ["A device with more memory, or a smaller base model."]
