"""RMS norms by one call of PyTorch instead of the six that transformers makes of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_SAME = 1e-6


def fuse_norms(model: Any, *, exact: bool = True) -> int:
    """Exchanges those norms of `model` that compute what PyTorch's own does; returns how many.

    `exact`: bit for bit as before, on a CPU; otherwise within rounding, in half of the passes over memory that PyTorch
    makes there, where no gradient is wanted. What a module computes is found out by trying it: families differ in
    where the weight is applied, and in rounding.
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
    weight.copy_(torch.linspace(0.5, 2, len(weight)))  # not 0, and not the same everywhere
    same = (_rms_norm(module, epsilon, trial) - module(trial)).abs().max() <= _SAME
    weight.copy_(kept)
    if same:
        module.forward = partial(norm, module, epsilon)
    return bool(same)


def _rms_norm(module: Any, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(hidden, module.weight.shape, module.weight, epsilon)


def _few_passes(module: Any, epsilon: float, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.is_cuda or hidden.dtype != torch.float32 or torch.is_grad_enabled():
        return _rms_norm(module, epsilon, hidden)
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    scale = length.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()
    return (hidden * scale).mul_(module.weight)
