"""The memory of a device: what is free, what a piece of work needs at most, and the bytes of tensors while they live.

    with TensorBytes() as counted:
        loss = model(ids).sum()
        loss.backward()
    counted.peak        the most bytes that tensors made inside held at once

On a GPU what is free and a peak are asked of CUDA. On a CPU free is what the system can hand out (within the limit of
the process's control group), and a peak counts tensors, without what kernels use within one operation.

`TensorBytes` counts on any device, the meta device included. A storage counts once, from the operation that makes it
until the last tensor over it is gone; tensors that were there before do not count. On the meta device a question about
a tensor's values (`bool`, `item`, `torch.equal`) is answered with 1, so that code which checks its numbers goes its
usual way.
"""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode

GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")


class DeviceMemory:
    """Free and peak memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def free(self) -> int:
        """Bytes that this process can still use, those that PyTorch keeps for reuse included."""
        if self.device.type != "cuda":
            return _free_ram()
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + unused

    def peak_of(self, work: Callable[[], object]) -> int:
        """The most bytes that `work` holds at once beyond those that were held before."""
        if self.device.type != "cuda":
            return TensorBytes.peak_of(work)
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before


def _free_ram() -> int:
    available = psutil.virtual_memory().available
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    return available if limit is None or used is None else max(0, min(available, limit - used))


def _number(file: Path) -> int | None:
    """The number in a file; None where there is no file, or another word."""
    text = file.read_text().strip() if file.exists() else ""
    return int(text) if text.isdigit() else None


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
            made = func(*(each.bfloat16() for each in args[:2]), *args[2:], **(kwargs or {})).to(args[0].dtype)
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
    """The tensors in an operation's argument or result, which may be nested lists, tuples and dictionaries."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _tensors(each)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
