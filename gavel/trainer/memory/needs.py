"""The bytes that a run needs on a device, by its model's config and its settings.

    needs = MemoryNeeds("Qwen/Qwen3-8B", Device("cuda", 80 * GIB))
    needs.of(run).missing       # 0: it fits

Base, adapter and caches are counted on the meta device, and the learner's passes by running them there: see
`learner_bytes`. What settings share is counted once. Of a device's memory `MARGIN` is left for what is not a tensor
(the CUDA context, fragments).

Whether an MLP is fused is found by running a small copy of it, as for a real policy.
"""

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert

from gavel.trainer.config import LoraSettings, TrainConfig, VllmSettings
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.device_memory import TensorBytes
from gavel.trainer.engines.kv_cache import SHARE_OF_MEMORY, shared_context, slot_bytes
from gavel.trainer.kernels.attention_kernels import assume
from gavel.trainer.kernels.fused_layers import fuse_mlps, fuse_norms
from gavel.trainer.kernels.packed_attention import AttentionError, attend_packed
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.step_bytes import MARGIN, PassBytes, checkpoints_by_default, fitting_tokens, probe_sequence
from gavel.trainer.policy.adapters import adapted_weights
from gavel.trainer.policy.loading import (
    auto_class,
    check_settings,
    dtype_of,
    text_decoder,
    usable_context,
    why_alone,
    why_unbatched,
)
from gavel.trainer.policy.lora_layers import add_adapter
from gavel.trainer.policy.policy import Policy, load_config, storage_bytes
from gavel.trainer.run_config import RunConfig


@contextlib.contextmanager
def as_on(device: str) -> Iterator[TensorBytes]:
    """Within the block, meta tensors are computed as those of `device` (`cpu`, `cuda`) are; yields their byte
    counter."""
    with assume(device), _FusedAttention(), TensorBytes() as counted:
        yield counted


class _FusedAttention(TorchFunctionMode):
    """Attention of meta tensors without scores: PyTorch would allocate all of them, a device's kernel keeps none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.nn.functional.scaled_dot_product_attention and args[0].is_meta:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, scale: float | None = None, **__: Any
) -> torch.Tensor:
    """Of the other arguments none changes what is kept."""
    if value.shape[-1] != query.shape[-1]:  # which the kernel does not know: plain products
        repeated = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeated, 1) for each in (key, value))
        return torch.softmax(query @ key.transpose(-1, -2), -1) @ value
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, False, scale=scale)[0]


_SMALL = 4


class PlannedPolicy(Policy):
    """A policy without weights and tokenizer, with the interface that the learner uses."""

    def __init__(self, config: Any, lora: LoraSettings, dtype: torch.dtype, *, quantized: bool = False) -> None:
        """`quantized`: the layers are PEFT's, as over 4-bit weights. Raises `BaseModelError` for no language model."""
        self.dtype = dtype
        self.lora = lora
        self.max_context = usable_context(config)
        config = copy.deepcopy(config)
        with as_on("cpu"), torch.device("meta"):  # answers the questions whether a fused form is equal
            base = auto_class(config).from_config(config, dtype=dtype).eval().requires_grad_(False)
            layers = _linear_layers(base)
            self.base_bytes: int = storage_bytes(base)
            self.quantized_bytes: int = self.base_bytes - sum(
                layer.weight.nbytes - _nf4_bytes(layer) for layer in layers
            )
            """Bytes of the base in 4 bits."""
            self.largest_dequantized = max((layer.weight.nbytes for layer in layers), default=0) if quantized else 0
            """Bytes of the weights that a quantized layer makes of its own for one product."""
            self.layer_bytes = [
                storage_bytes(each)
                for each in text_decoder(base).modules()
                if isinstance(each, GradientCheckpointingLayer)
            ]
            if quantized:
                self.base_bytes = self.quantized_bytes
            self.parameter_count: int = base.num_parameters()
            fuse_norms(base)
            fuse_mlps(torch.nn.ModuleList(each for each in base.modules() if _is_fusible(each)))
            self.model = add_adapter(base, lora, plain=not quantized)
            self.model.eval()
            self.spans = None
            if why_alone(config) is None:
                with contextlib.suppress(AttentionError):
                    self.spans = attend_packed(self.decoder())
        self.sharded = False

    def checkpoint_gradients(self, on: bool) -> None:
        super().checkpoint_gradients(on)
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # `as_on` does not reach a layer's recomputation
                both = lambda: (contextlib.nullcontext(), _FusedAttention())  # noqa: E731
                again = functools.partial(checkpoint, use_reentrant=False, context_fn=both)
                layer._gradient_checkpointing_func = again  # type: ignore[assignment]


def _linear_layers(model: Any) -> list[torch.nn.Linear]:
    """The layers that bitsandbytes quantizes: all but the head and those that share its weights."""
    kept = get_keys_to_not_convert(model)
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not any(name == each or name.startswith(f"{each}.") for each in kept)
    ]


def _nf4_bytes(layer: torch.nn.Linear) -> int:
    """Half a byte a weight, a byte a block of 64, and four bytes for each 256 of these (arXiv 2305.14314)."""
    weights = layer.weight.numel()
    return weights // 2 + weights // 64 + weights // (64 * 64)


def _is_fusible(module: torch.nn.Module) -> bool:
    """Whether an MLP with linear layers of a few rows and columns, and real values, is fused."""
    if not type(module).__name__.endswith("MLP"):
        return False
    small = copy.copy(module)
    with torch.device("cpu"):
        small._modules = {
            name: torch.nn.Linear(_SMALL, _SMALL) if isinstance(child, torch.nn.Linear | Conv1D) else child
            for name, child in module._modules.items()
        }
        return bool(fuse_mlps(torch.nn.ModuleList([small])))


_COUNTED = 4096, 8192
"""Tokens of the steps that are counted: from the first on no tile grows with them."""


def learner_bytes(policy: PlannedPolicy, *, device: str, checkpointing: bool) -> PassBytes:
    """Bytes of a step on `device` (`cpu`, `cuda`), without base and adapter; gradients and optimizer state are in
    `fixed`."""
    small, large = measure_step_peaks(policy, _COUNTED, device=device, checkpointing=checkpointing)
    return PassBytes.through((_COUNTED[0], small), (_COUNTED[1], large))


def measure_step_peaks(policy: PlannedPolicy, sizes: Sequence[int], *, device: str, checkpointing: bool) -> list[int]:
    """The peak bytes of a step over each of these numbers of tokens."""
    learner = Learner(policy)
    config = TrainConfig(gradient_checkpointing=checkpointing, micro_batch_tokens=max(sizes))
    peaks: list[int] = []
    with as_on(device) as counted:
        learner.step(_batch(2, 2), config)  # makes the optimizer's state
        for tokens in sizes:
            learner.optimizer.zero_grad(set_to_none=True)
            counted.peak = counted.live
            learner.step(_batch(tokens, policy.max_context), config)
            peaks.append(counted.peak + policy.largest_dequantized)
    return peaks


def _batch(tokens: int, longest: int) -> Batch:
    """Sequences of at most `longest` tokens that share none."""
    batch = Batch(trajectories=1, groups=1)
    for number, first in enumerate(range(0, tokens, longest)):
        sequence = probe_sequence(max(2, min(longest, tokens - first)))
        sequence.token_ids[0] = number
        batch.sequences.append(TrainedSequence(sequence, 1.0, number))
    return batch


@dataclass(frozen=True, slots=True)
class Device:
    kind: Literal["cpu", "cuda"]
    total: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory needs of one run, in bytes unless a name says otherwise."""

    base: int
    adapter: int
    context: int
    """Tokens of a conversation."""
    sampler: str
    sampler_bytes: int
    """Bytes of the embedded engine's caches and merged weights (its base is the learner's), or vLLM's whole share."""
    cache_per_conversation: int
    conversations: int
    """Sampled at once."""
    checkpointing: bool
    """True if the run would use gradient checkpointing."""
    left: int
    """Bytes left for the learner's passes."""
    micro_batch_tokens: int
    """The micro-batch size that the run would use, in tokens."""
    longest: int
    """Tokens of the largest pass: a longer sequence is a micro-batch of its own."""
    needed: int
    """Everything at once."""
    missing: int
    """Bytes that the device, or vLLM's share of it, lacks; 0 if the run fits."""


class MemoryNeeds:
    """Computes the memory needs of runs of one base model on one device."""

    def __init__(self, base_model: str, device: Device) -> None:
        """Raises `BaseModelError` for a model whose config cannot be read or that cannot be trained."""
        self.config = load_config(base_model)
        self.device = device
        self._policies: dict[str, PlannedPolicy] = {}
        self._cache_of = functools.cache(self._count_cache)
        self.passes = functools.cache(
            lambda policy, checkpointing: learner_bytes(policy, device=device.kind, checkpointing=checkpointing)
        )
        """Of a step of the learner beside base and adapter, by policy and whether it checkpoints."""

    def policy(self, run: RunConfig) -> PlannedPolicy:
        """The model of the run, without weights. Raises `BaseModelError` for a model that cannot be trained."""
        lora, settings = run.model.lora, run.model.policy
        key = lora.model_dump_json() + settings.model_dump_json()
        if key not in self._policies:
            check_settings(settings, lora, sharded=False)
            dtype, quantized = dtype_of(settings, self.device.kind), settings.quantization is not None
            self._policies[key] = PlannedPolicy(self.config, lora, dtype, quantized=quantized)
        return self._policies[key]

    def of(self, run: RunConfig) -> Needs:
        policy, backend, train, kind = self.policy(run), run.backend, run.train, self.device.kind
        usable = round(self.device.total * (1 - MARGIN))
        base, adapter = policy.base_bytes, sum(parameter.nbytes for parameter in policy.parameters())
        if backend.shard_base:  # of a layer every process holds its part, and the layer while it is computed
            base += max(policy.layer_bytes) - sum(policy.layer_bytes) * (backend.processes - 1) // backend.processes
        by_default = checkpoints_by_default(kind) is not False
        checkpointing = by_default if train.gradient_checkpointing is None else train.gradient_checkpointing
        context = self._context(run, usable - base - adapter)
        conversation = self._conversation(policy, context)
        sampler, held, conversations, lacking = self._sampler(run, context, usable - base - adapter, conversation)
        left = usable - base - adapter - held
        passes: PassBytes = self.passes(policy, checkpointing)
        tokens = train.micro_batch_tokens or fitting_tokens(passes, left / (1 - MARGIN), kind)
        longest = max(tokens, context)
        needed = base + adapter + held + passes.of(longest)
        return Needs(
            base=base,
            adapter=adapter,
            context=context,
            sampler=sampler,
            sampler_bytes=held,
            cache_per_conversation=conversation,
            conversations=conversations,
            checkpointing=checkpointing,
            left=left,
            micro_batch_tokens=tokens,
            longest=longest,
            needed=needed,
            missing=max(0, needed - usable) + lacking,
        )

    def _conversation(self, policy: PlannedPolicy, tokens: int) -> int:
        """Bytes of the cache of a conversation: of its first token, and as many again for each further one."""
        first, second = self._cache_of(policy)
        return first + (second - first) * (tokens - 1)

    def _count_cache(self, policy: PlannedPolicy) -> list[int]:
        """Of one token, and of two."""
        decoder = text_decoder(policy.model.get_base_model())
        read: Any = SimpleNamespace(device=torch.device("meta"), get_decoder=lambda: decoder)
        with as_on(self.device.kind), policy.model.disable_adapter():
            return [slot_bytes(read, count) for count in (1, 2)]

    def _context(self, run: RunConfig, free: int) -> int:
        """By the rules of the backend: the model's own, bounded by memory, where none is asked for."""
        policy, asked = self.policy(run), run.backend.max_context
        most = policy.max_context
        if asked is not None or run.backend.engine != "transformers":
            return min(asked or most, most)
        share = max(0, round(free * SHARE_OF_MEMORY[self.device.kind]))
        return shared_context(share, most, run.backend.slots, self._conversation(policy, most), self.device.kind)

    def _sampler(self, run: RunConfig, context: int, free: int, conversation: int) -> tuple[str, int, int, int]:
        """The engine's name, its bytes, the conversations that it holds, and the bytes that vLLM's share lacks.

        By the rules of the engines: the embedded one's cache grows into a share of what is free, vLLM has one of all.
        """
        policy, kind, engine = self.policy(run), self.device.kind, run.backend.engine
        if engine != "transformers":
            vllm = engine if isinstance(engine, VllmSettings) else VllmSettings()
            if vllm.urls or vllm.sleep or kind == "cpu":  # it is elsewhere
                return "vLLM", 0, run.backend.slots, 0
            share = round(self.device.total * vllm.gpu_memory_utilization)
            fitting = max(0, share - policy.base_bytes) // conversation
            return "vLLM", share, min(run.backend.slots, fitting), max(0, policy.base_bytes + conversation - share)
        versions = run.loop.max_staleness + 1 + run.backend.earlier_policies
        merged = policy.dtype == torch.float32 and run.model.policy.quantization is None
        weights = [each.weight for each in adapted_weights(policy.model.get_base_model())] if merged else []
        adapters = versions * sum(each.nbytes for each in weights or policy.parameters())
        slots = max(1, min(run.backend.slots, round((free - adapters) * SHARE_OF_MEMORY[kind]) // conversation))
        alone = ", one conversation at a time" if why_unbatched(self.config, context) else ""
        return f"embedded{alone}", adapters + slots * conversation, slots, 0
