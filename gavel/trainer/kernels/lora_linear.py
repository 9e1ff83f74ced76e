"""A LoRA linear layer as one autograd function: y = x W' + s (x A') B', added in place to the base's result.

A subclass of PEFT's layer with the same weights, names and values; it falls back to PEFT for other cases. PEFT's
version makes extra passes over every activation, which dominate the time of small and of wide models.

In lower precision A and B are rounded to the activations' type, and y once more than the base's result; the embedded
engine computes the same product, so both round alike.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners import lora
from torch import nn


class LoraWeights(NamedTuple):
    """y = x weight' + bias + scale (x down') up', and its gradients. Rows are `[R, in]`, `narrow` `[R, rank]`."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    down: torch.Tensor
    up: torch.Tensor
    scale: float

    def product(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """y, with the axes of `x`, and `narrow`, the rows of `x` in the adapter's rank."""
        rows = x.reshape(-1, x.shape[-1])
        narrow = rows @ self.down.T.to(rows.dtype)
        result = nn.functional.linear(x, self.weight, self.bias)  # not a view: some models change it in place
        result.view(len(rows), -1).addmm_(narrow, self.up.T.to(rows.dtype), alpha=self.scale)
        return result, narrow

    def to_narrow(self, incoming: torch.Tensor) -> torch.Tensor:
        return incoming @ self.up.to(incoming.dtype) * self.scale

    def to_rows(self, incoming: torch.Tensor, to_narrow: torch.Tensor) -> torch.Tensor:
        return (incoming @ self.weight).addmm_(to_narrow, self.down.to(incoming.dtype))

    def to_factors(
        self, rows: torch.Tensor, narrow: torch.Tensor, incoming: torch.Tensor, to_narrow: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        to_down = (to_narrow.T @ rows).to(self.down.dtype)
        # On a CPU three times as fast as the transposed product.
        to_up = (narrow.T @ incoming).T.to(self.up.dtype) * self.scale
        return to_down, to_up


class LoraLinear(lora.Linear):
    """PEFT's layer, with its own forward for the case that is trained here."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        weights = None if args or kwargs else self.plain_weights()
        return super().forward(x, *args, **kwargs) if weights is None else _LoraLinear.apply(x, *weights)  # type: ignore[no-any-return]

    def plain_weights(self) -> LoraWeights | None:
        """Those of the layer, when one adapter is active over a plain linear layer, without dropout."""
        base = self.get_base_layer()
        if self.disable_adapters or self.merged or type(base) is not nn.Linear or len(self.active_adapters) != 1:
            return None
        name = self.active_adapters[0]
        dropout = self.lora_dropout[name] if name in self.lora_A else None
        if dropout is None or name in self.lora_variant or (dropout.training and not isinstance(dropout, nn.Identity)):
            return None
        down, up = (half.get_parameter(f"{name}.weight") for half in (self.lora_A, self.lora_B))
        return LoraWeights(base.weight, base.bias, down, up, self.scaling[name])


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, *layer: Any) -> torch.Tensor:
        weights = LoraWeights(*layer)
        result, narrow = weights.product(x)
        ctx.save_for_backward(x.reshape(-1, x.shape[-1]), weights.weight, weights.down, weights.up, narrow)
        ctx.shape, ctx.scale = x.shape, weights.scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        rows, weight, down, up, narrow = ctx.saved_tensors
        weights = LoraWeights(weight, None, down, up, ctx.scale)
        incoming = gradient.reshape(-1, gradient.shape[-1])
        to_narrow = weights.to_narrow(incoming)
        to_x = weights.to_rows(incoming, to_narrow).view(ctx.shape) if ctx.needs_input_grad[0] else None
        return to_x, None, None, *weights.to_factors(rows, narrow, incoming, to_narrow), None
