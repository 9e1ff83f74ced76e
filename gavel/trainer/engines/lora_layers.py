"""LoRA layers of the sampler's plain model, for an adapter that is not merged into the weights.

They compute and round as the learner's layers do, so sampler and learner agree in any precision.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from gavel.trainer.kernels.lora_experts import ExpertFactors, adapted_experts
from gavel.trainer.kernels.lora_linear import LoraWeights
from gavel.trainer.policy.adapter import LoraFactors

Adapted = TypeVar("Adapted", "AdaptedLinear", "AdaptedExperts")


class AdaptedLinear(torch.nn.Module):
    """y = W x + scale * B (A x)."""

    def __init__(self, plain: torch.nn.Module) -> None:
        super().__init__()
        self._plain = plain
        self.factors: LoraFactors | None = None

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


class AdaptedExperts(torch.nn.Module):
    """The learner's `LoraExperts`."""

    def __init__(self, plain: torch.nn.Module) -> None:
        super().__init__()
        self._plain = plain
        self.factors: dict[str, ExpertFactors] = {}
        """By the name of the weight."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self.factors:
            return self._plain(*args, **kwargs)
        return adapted_experts(self._plain, self.factors, *args, **kwargs)


def set_factors(model: Any, factors: Iterable[LoraFactors]) -> None:
    """Replaces the adapter of `model` by `factors`; none gives the plain model. Raises AttributeError for no layer."""
    for module in model.modules():
        if isinstance(module, AdaptedLinear):
            module.factors = None
        elif isinstance(module, AdaptedExperts):
            module.factors = {}
    for each in factors:
        if each.a.ndim == 3:
            name, _, weight = each.layer.rpartition(".")
            _adapted(model, name, AdaptedExperts).factors[weight] = ExpertFactors(each.a, each.b, each.scale)
        else:
            _adapted(model, each.layer, AdaptedLinear).factors = each


def _adapted(model: Any, name: str, kind: type[Adapted]) -> Adapted:
    """The module of this name, which is put into `kind` unless it is in it."""
    module = model.get_submodule(name)
    if not isinstance(module, kind):
        module = kind(module)
        model.set_submodule(name, module)
    return module
