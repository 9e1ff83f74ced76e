"""A gated MLP as one autograd function: y = down(silu(gate x) * up x), with `down` a LoRA layer.

Autograd keeps four wide activations of each token: gate x, up x, silu(gate x) and the product. This keeps the first two
and computes the others again in the backward pass, in two elementwise passes. Values and gradients are bit for bit the
same.
"""

from functools import partial
from typing import Any

import torch
from torch.nn.functional import silu

from gavel.trainer.kernels.lora_linear import LoraLinear, LoraWeights

_LAYERS = ("gate_proj", "up_proj", "down_proj")


def fuse_mlps(model: Any) -> int:
    """Replaces the MLPs of `model` that compute y; returns how many. Call it before layers become LoRA layers.

    Whether a module computes y is tested by running it. Where `down` is another layer than a plain `LoraLinear`, the
    module's own forward runs.
    """
    return sum(_fused(module) for module in model.modules() if type(module).__name__.endswith("MLP"))


def _fused(module: Any) -> bool:
    if not all(type(getattr(module, name, None)) is torch.nn.Linear for name in _LAYERS):
        return False
    weight = module.gate_proj.weight
    same = computes_y(module, weight.dtype, weight.device)
    if same:
        module.forward = partial(gated_forward, module, module.forward, _GatedLora)
    return same


@torch.no_grad()
def computes_y(module: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the result of a module with these three layers is y, bit for bit."""
    columns: int = module.gate_proj.in_features
    trial = torch.linspace(-3, 4, 2 * columns, dtype=dtype, device=device).view(2, columns)
    return torch.equal(module.down_proj(silu(module.gate_proj(trial)) * module.up_proj(trial)), module(trial))


def gated_forward(module: Any, own: Any, gated: type[torch.autograd.Function], x: torch.Tensor) -> torch.Tensor:
    """y by `gated` of gate x, up x and the weights of `down`; by `own(x)` where `down` is not a plain `LoraLinear`."""
    down = module.down_proj
    weights = down.plain_weights() if isinstance(down, LoraLinear) else None
    if weights is None:
        return own(x)
    return gated.apply(module.gate_proj(x), module.up_proj(x), *weights)  # type: ignore[no-any-return]


class _GatedLora(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, *layer: Any) -> torch.Tensor:
        weights = LoraWeights(*layer)
        result, narrow = weights.product(silu(gate).mul_(up))
        ctx.save_for_backward(gate, up, weights.weight, weights.down, weights.up, narrow)
        ctx.scale = weights.scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        gate, up, weight, lora_down, lora_up, narrow = ctx.saved_tensors
        weights = LoraWeights(weight, None, lora_down, lora_up, ctx.scale)
        incoming = gradient.flatten(0, -2)
        to_narrow = weights.to_narrow(incoming)
        opened = silu(gate)
        to_factors = weights.to_factors((opened * up).flatten(0, -2), narrow, incoming, to_narrow)
        to_product = weights.to_rows(incoming, to_narrow).view_as(gate)
        to_gate = torch.ops.aten.silu_backward(to_product * up, gate)
        return to_gate, opened.mul_(to_product), None, None, *to_factors, None
