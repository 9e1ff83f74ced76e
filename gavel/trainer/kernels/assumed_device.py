"""The device that decides how a kernel computes: a tensor's own, or for one of the meta device an assumed one.

    with assume("cuda"):
        kernel_for(query, value, form)      # of meta tensors: what a GPU would run

So a plan of a GPU's memory is made without one.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

_assumed: ContextVar[str] = ContextVar("assumed device", default="cpu")


def device_type(tensor: torch.Tensor) -> str:
    """`cpu`, `cuda`, …"""
    return _assumed.get() if tensor.is_meta else tensor.device.type


@contextlib.contextmanager
def assume(device: str) -> Iterator[None]:
    """Within it, meta tensors are computed as those of `device` are."""
    token = _assumed.set(device)
    try:
        yield
    finally:
        _assumed.reset(token)
