"""Counts the bytes of tensors while they live, on any device, the meta device included.

    with TensorBytes() as counted:
        loss = model(ids).sum()
        loss.backward()
    counted.peak        the most bytes that tensors made inside held at once

A storage counts once, from the operation that makes it until the last tensor over it is gone. Tensors that were there
before, and what kernels use within one operation, do not count. On the meta device a question about a tensor's values
(`bool`, `item`, `torch.equal`) is answered with 1, so that code which checks its numbers goes its usual way.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_VALUES = (_aten._local_scalar_dense.default, _aten.equal.default)


class TensorBytes(TorchDispatchMode):
    """The bytes of the tensors that operations inside the block made: `live` now, `peak` at most."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}
        """Bytes of each storage, by its address in memory (of the Python object's C part)."""
        self._watched: dict[int, weakref.finalize[..., Any]] = {}

    @classmethod
    def peak_of(cls, work: Callable[[], object]) -> int:
        """The most bytes that tensors made by `work` hold at once."""
        with cls() as counted:
            work()
        return counted.peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _VALUES and args[0].is_meta:
            return 1 if func is not _aten.equal.default else True
        if func is _aten._grouped_mm.default and args[0].is_meta:  # whose meta kernel knows bfloat16 alone
            made = _grouped_product(*args, **(kwargs or {}))
        else:
            made = func(*args, **(kwargs or {}))
        given = {each.untyped_storage()._cdata for each in _tensors((args, kwargs))}
        for each in _tensors(made):
            storage = each.untyped_storage()
            if storage._cdata in self._sizes or storage._cdata not in given:  # else a view of an earlier tensor
                self._watch(storage)
        return made

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        if known is None:
            self._watched[key] = weakref.finalize(storage, self._forget, key)
        if known != size:
            self._sizes[key] = size
            self.live += size - (known or 0)
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
        del self._watched[key]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Those in a value of an operation: a tensor, or nested lists, tuples and dictionaries of them."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _tensors(each)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _grouped_product(
    one: torch.Tensor, other: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, **__: Any
) -> Any:
    """The shape of PyTorch's grouped matrix product."""
    match one.dim(), other.dim():
        case 2, 2:
            assert offs is not None
            shape = (len(offs), one.shape[0], other.shape[1])
        case 2, 3:
            shape = (one.shape[0], other.shape[2])
        case 3, 2:
            shape = (one.shape[1], other.shape[1])
        case _:
            shape = (one.shape[0], one.shape[1], other.shape[2])
    return one.new_empty(shape)
