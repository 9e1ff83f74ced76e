"""RMS norms by one fused PyTorch operation instead of the six of transformers.

In lower precision transformers round the normalized value and then its product with the weight; the fused operation
rounds once, so it is nearer to the float32 value.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_SAME = 1e-6


def fuse_norms(model: Any, *, exact: bool = True) -> int:
    """Replaces the norms of `model` that equal PyTorch's `rms_norm` in float32; returns how many.

    In lower precision it must be no further from the float32 value than the norm was. `exact`: in float32 bit-identical
    to before on a CPU. Otherwise equal within rounding, with half as many passes over memory as
    PyTorch's, where no gradient is needed. Equality is tested by running the module, since model families differ in
    where the weight is applied and in rounding.
    """
    return sum(
        _fused(module, _rms_norm if exact else _few_passes)
        for module in model.modules()
        if type(module).__name__.endswith("RMSNorm")
    )


@torch.no_grad()
def _fused(module: Any, norm: Callable[[Any, float, torch.Tensor], torch.Tensor]) -> bool:
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, torch.nn.Parameter) or not isinstance(epsilon, float):
        return False
    trial = torch.linspace(-3, 4, 2 * len(weight), dtype=weight.dtype, device=weight.device).view(2, -1)
    kept = weight.clone()
    weight.copy_(torch.linspace(0.5, 2, len(weight)))  # neither 0 nor constant
    found, own = _rms_norm(module, epsilon, trial), module(trial)
    precise = copy.deepcopy(module).float()
    truth = precise(trial.float())
    same = (_rms_norm(precise, epsilon, trial.float()) - truth).abs().max() <= _SAME
    if weight.dtype != torch.float32:
        same &= found.dtype == own.dtype and _error(found, truth) <= _error(own, truth) + _SAME
    weight.copy_(kept)
    if same:
        module.forward = partial(norm, module, epsilon)
    return bool(same)


def _error(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return (found - truth).abs().mean()


def _rms_norm(module: Any, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    weight: torch.Tensor = module.weight
    plain = hidden.dtype == weight.dtype and hidden.dtype in (torch.float32, torch.float64) and not hidden.is_cuda
    if plain and hidden.requires_grad and torch.is_grad_enabled() and not weight.requires_grad:
        return _FrozenRmsNorm.apply(hidden, weight, epsilon)  # type: ignore[no-any-return]
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)


class _FrozenRmsNorm(torch.autograd.Function):
    """PyTorch's value, and its gradient to x in four passes in place of a pass for each of its operations.

    With r = (mean x² + ε)^(-1/2) and g the gradient times the weight: r g - r³ mean(g x) x.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.epsilon = epsilon
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        hidden, weight = ctx.saved_tensors
        size = hidden.shape[-1]
        scale = _inverse_length(hidden, ctx.epsilon)
        weighted = gradient * weight
        along = (weighted * hidden).sum(-1, keepdim=True).mul_(scale**3).div_(-size)
        return weighted.mul_(scale).addcmul_(hidden, along), None, None


def _inverse_length(hidden: torch.Tensor, epsilon: float) -> torch.Tensor:
    """(mean x² + ε)^(-1/2) of each row, `[..., 1]`."""
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return length.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()


def _few_passes(module: Any, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.is_cuda or hidden.dtype != torch.float32 or torch.is_grad_enabled():
        return _rms_norm(module, epsilon, hidden)
    return (hidden * _inverse_length(hidden, epsilon)).mul_(module.weight)
