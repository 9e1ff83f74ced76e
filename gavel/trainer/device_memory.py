"""The memory of a device: what is free, and what a piece of work needs at most.

On a GPU both are asked of CUDA. On a CPU free is what the system can hand out (within the limit of the process's
control group), and a peak counts tensors, without what kernels use within one operation.
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from gavel.trainer.tensor_bytes import TensorBytes

GIB = 2**30
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class DeviceMemory:
    """Of one device."""

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
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if _MEMINFO.exists():  # which counts what the system keeps of files and gives back when asked
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    return available if limit is None or used is None else max(0, min(available, limit - used))


def _number(file: Path) -> int | None:
    """The number in a file; None where there is no file, or another word."""
    text = file.read_text().strip() if file.exists() else ""
    return int(text) if text.isdigit() else None
