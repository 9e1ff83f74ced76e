"""A weight of a base model that an adapter of PEFT changes: a linear layer's, or the stacked one of many experts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer, ParamWrapper

from gavel.trainer.kernels.lora_experts import factors_of
from gavel.trainer.policy.adapter import LoraFactors

_ADAPTER = "default"
_WRAPPED = ".base_layer"
"""What PEFT puts into the name of a wrapped module."""


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """W, of which the adapter makes W + scale * B A."""

    name: str
    """In the plain model."""
    _layer: Any

    @property
    def weight(self) -> torch.nn.Parameter:
        """W itself."""
        wrapper = isinstance(self._layer, ParamWrapper)
        return self._layer.get_param() if wrapper else self._layer.get_base_layer().weight

    def delta(self) -> torch.Tensor:
        """scale * B A, of the shape of W."""
        return self._layer.get_delta_weight(_ADAPTER)

    def factors(self) -> LoraFactors:
        """Copies of A and B, with the scale."""
        if isinstance(self._layer, ParamWrapper):
            a, b, scale = factors_of(self._layer, _ADAPTER)
            return LoraFactors(self.name, a.detach().clone(), b.detach().contiguous(), scale)
        a, b = (half.get_parameter(f"{_ADAPTER}.weight") for half in (self._layer.lora_A, self._layer.lora_B))
        layer = self.name.removesuffix(".weight")
        return LoraFactors(layer, a.detach().clone(), b.detach().clone(), self._layer.scaling[_ADAPTER])


def adapted_weights(model: Any) -> Iterator[AdaptedWeight]:
    """Those of `model`, a base model that PEFT has adapted, by their names without PEFT."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            weight = module.parameter_name if isinstance(module, ParamWrapper) else "weight"
            yield AdaptedWeight(f"{name.replace(_WRAPPED, '')}.{weight}", module)
