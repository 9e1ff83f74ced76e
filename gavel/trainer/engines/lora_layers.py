"""LoRA layers of the sampler's plain model, for an adapter that is not merged into the weights.

They compute and round as the learner's layers do, so sampler and learner agree in any precision.
"""

from collections.abc import Iterable
from typing import Any

import torch

from gavel.trainer.kernels.lora_linear import LoraWeights
from gavel.trainer.policy.adapter import LoraFactors


class AdaptedLinear(torch.nn.Module):
    """y = W x + scale * B (A x)."""

    def __init__(self, plain: torch.nn.Module, factors: LoraFactors) -> None:
        super().__init__()
        self._plain = plain
        self.factors: LoraFactors | None = factors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factors = self.factors
        if factors is None:
            return self._plain(x)
        if type(self._plain) is torch.nn.Linear:  # the learner's `LoraLinear`
            return LoraWeights(self._plain.weight, self._plain.bias, factors.a, factors.b, factors.scale).product(x)[0]
        # The others are layers of PEFT: the product in the factors' precision, over 4 bits rounded before the sum.
        y = self._plain(x)
        update = x.to(factors.a.dtype) @ factors.a.T @ factors.b.T * factors.scale
        if type(self._plain).__name__ == "Linear4bit":
            update = update.to(y.dtype)
        return (y + update).to(y.dtype)


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
