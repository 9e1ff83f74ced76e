"""A LoRA linear layer as one autograd function: y = x W' + s (x A') B', added in place to the base's result.

A subclass of PEFT's layer with the same weights, names and values; it falls back to PEFT for other cases. PEFT's
version makes extra passes over every activation, which dominate the time of small and of wide models.
"""

from typing import Any

import torch
from peft.tuners import lora
from torch import nn


class LoraLinear(lora.Linear):
    """PEFT's layer, with its own forward for the case that is trained here."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        base = self.get_base_layer()
        if (
            self.disable_adapters
            or self.merged
            or args
            or kwargs
            or type(base) is not nn.Linear
            or len(self.active_adapters) != 1
        ):
            return super().forward(x, *args, **kwargs)
        name = self.active_adapters[0]
        if name not in self.lora_A or name in self.lora_variant or not isinstance(self.lora_dropout[name], nn.Identity):
            return super().forward(x)
        down, up = self.lora_A[name].weight, self.lora_B[name].weight
        return _LoraLinear.apply(x, base.weight, base.bias, down, up, self.scaling[name])  # type: ignore[no-any-return]


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, down: Any, up: Any, scale: float) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        narrow = rows @ down.T.to(x.dtype)
        result = nn.functional.linear(rows, weight, bias)
        result.addmm_(narrow, up.T.to(x.dtype), alpha=scale)
        ctx.save_for_backward(rows, weight, down, up, narrow)
        ctx.shape, ctx.scale = x.shape, scale
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        rows, weight, down, up, narrow = ctx.saved_tensors
        incoming = gradient.reshape(-1, gradient.shape[-1])
        to_narrow = incoming @ up.to(incoming.dtype) * ctx.scale
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (incoming @ weight).addmm_(to_narrow, down.to(incoming.dtype)).view(ctx.shape)
        to_down = (to_narrow.T @ rows).to(down.dtype)
        to_up = (narrow.T @ incoming).T.to(
            up.dtype
        ) * ctx.scale  # three times as fast on a CPU as the transposed product
        return to_x, None, None, to_down, to_up, None
