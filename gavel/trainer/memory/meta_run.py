"""Runs code over meta tensors as a device would run it, and counts the bytes that it would hold."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gavel.trainer.kernels.assumed_device import assume
from gavel.trainer.tensor_bytes import TensorBytes


@contextlib.contextmanager
def as_on(device: str) -> Iterator[TensorBytes]:
    """Within it, meta tensors are computed as those of `device` (`cpu`, `cuda`) are; what is given counts them."""
    with assume(device), _FusedAttention(), TensorBytes() as counted:
        yield counted


def recomputing() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[Any]]:
    """What `torch.utils.checkpoint` enters for a layer, and for computing it again, where `as_on` does not reach."""
    return contextlib.nullcontext(), _FusedAttention()


class _FusedAttention(TorchFunctionMode):
    """Of meta tensors PyTorch computes attention with all its scores; devices have a kernel that does not keep them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.nn.functional.scaled_dot_product_attention and args[0].is_meta:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    del attn_mask, dropout_p, is_causal, enable_gqa  # none changes what is kept
    if value.shape[-1] != query.shape[-1]:  # which the kernel does not know: plain products
        repeated = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeated, 1) for each in (key, value))
        return torch.softmax(query @ key.transpose(-1, -2), -1) @ value
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, False, scale=scale)[0]
