"""A policy of a config alone: the base model and its adapter on the meta device, whose tensors have no storage.

The learner's own code runs over it, and `TensorBytes` counts what it would hold. Whether a norm or an MLP is fused is
found by running a small copy of it, as for a real policy.
"""

import contextlib
import copy
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert

from gavel.trainer.config import LoraSettings
from gavel.trainer.kernels.gated_mlp import fuse_mlps
from gavel.trainer.kernels.packed_attention import AttentionError, attend_packed
from gavel.trainer.kernels.rms_norm import fuse_norms
from gavel.trainer.memory.meta_run import as_on, recomputing
from gavel.trainer.policy.base_size import storage_bytes
from gavel.trainer.policy.families import usable_context, why_alone
from gavel.trainer.policy.loading import auto_class, text_decoder
from gavel.trainer.policy.policy import Policy, adapted

_SMALL = 4


class PlannedPolicy(Policy):
    """What the learner uses of a policy; it has neither weights nor a tokenizer."""

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
            """Of the base in 4 bits."""
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
            self.vocabulary: int = base.get_input_embeddings().num_embeddings
            fuse_norms(torch.nn.ModuleList(_fusible_norms(base)))
            fuse_mlps(torch.nn.ModuleList(_fusible_mlps(base)))
            self.model = adapted(base, lora, plain=not quantized)
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
                again = partial(checkpoint, use_reentrant=False, context_fn=recomputing)
                layer._gradient_checkpointing_func = again  # type: ignore[assignment]


def _linear_layers(model: Any) -> list[torch.nn.Linear]:
    """Those that bitsandbytes quantizes: all but the head and what shares its weights with others."""
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


def _fusible_norms(model: torch.nn.Module) -> list[torch.nn.Module]:
    found: list[torch.nn.Module] = []
    verdicts: dict[tuple[Any, ...], bool] = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, torch.nn.Parameter):
            continue
        kind = type(module), weight.shape, weight.dtype
        if kind not in verdicts:
            small = copy.deepcopy(module).to_empty(device="cpu")
            torch.nn.init.ones_(small.weight)  # type: ignore[arg-type]
            with torch.device("cpu"):
                verdicts[kind] = bool(fuse_norms(torch.nn.ModuleList([small])))
        if verdicts[kind]:
            found.append(module)
    return found


def _fusible_mlps(model: torch.nn.Module) -> list[torch.nn.Module]:
    found: list[torch.nn.Module] = []
    verdicts: dict[type, bool] = {}
    for module in model.modules():
        if not type(module).__name__.endswith("MLP"):
            continue
        kind = type(module)
        if kind not in verdicts:
            with torch.device("cpu"):
                verdicts[kind] = bool(fuse_mlps(torch.nn.ModuleList([_small_copy(module)])))
        if verdicts[kind]:
            found.append(module)
    return found


def _small_copy(module: torch.nn.Module) -> torch.nn.Module:
    """The module with linear layers of a few rows and columns."""
    small = copy.copy(module)
    small._modules = {
        name: torch.nn.Linear(_SMALL, _SMALL) if isinstance(child, torch.nn.Linear | Conv1D) else child
        for name, child in module._modules.items()
    }
    return small
