"""LoRA layers of the sampler's plain model, for an adapter that is not merged into the weights.

They compute and round as PEFT does (the product in the factors' precision, the sum in the layer's), so sampler and
learner agree in any precision.
"""

from collections.abc import Iterable
from typing import Any

import torch

from gavel.trainer.policy.adapter import LoraFactors


class AdaptedLinear(torch.nn.Module):
    """y = W x + scale * B (A x)."""

    def __init__(self, plain: torch.nn.Module, factors: LoraFactors) -> None:
        super().__init__()
        self._plain = plain
        self.factors: LoraFactors | None = factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._plain(x)
        if self.factors is None:
            return y
        update = x.to(self.factors.a.dtype) @ self.factors.a.T @ self.factors.b.T
        return (y + update * self.factors.scale).to(y.dtype)


def set_factors(model: Any, factors: Iterable[LoraFactors]) -> None:
    """Replaces the adapter of `model` by `factors`; none gives the plain model. Raises AttributeError for no layer."""
    for module in model.modules():
        if isinstance(module, AdaptedLinear):
            module.factors = None
    for each in factors:
        layer = model.get_submodule(each.layer)
        if isinstance(layer, AdaptedLinear):
            layer.factors = each
        else:
            parent, _, leaf = each.layer.rpartition(".")
            setattr(model.get_submodule(parent), leaf, AdaptedLinear(layer, each))
