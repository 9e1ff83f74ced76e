"""Free memory and peaks of the devices that are here."""

import pytest
import torch

from gavel.trainer import device_memory
from gavel.trainer.device_memory import GIB, DeviceMemory

CPU = torch.device("cpu")


def write(path, text: str) -> None:
    path.write_text(text)


def test_free_memory_of_a_cpu_is_what_the_system_can_hand_out(tmp_path, monkeypatch):
    write(tmp_path / "meminfo", "MemTotal:       99999999 kB\nMemFree:  100 kB\nMemAvailable:   2097152 kB\n")
    monkeypatch.setattr(device_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(device_memory, "_CGROUP", tmp_path)
    assert DeviceMemory(CPU).free() == 2 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "free"), [("max", 7, 2 * GIB), (GIB, GIB // 4, 3 * GIB // 4), (GIB, 2 * GIB, 0)]
)
def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch, limit, used, free):
    write(tmp_path / "meminfo", "MemAvailable:   2097152 kB\n")
    write(tmp_path / "memory.max", f"{limit}\n")
    write(tmp_path / "memory.current", f"{used}\n")
    monkeypatch.setattr(device_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(device_memory, "_CGROUP", tmp_path)
    assert DeviceMemory(CPU).free() == free


def test_a_system_without_meminfo_tells_its_free_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(device_memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(device_memory, "_CGROUP", tmp_path)
    monkeypatch.setattr("os.sysconf", lambda name: 4096 if "SIZE" in name else 25)
    assert DeviceMemory(CPU).free() == 100 * 1024


def test_a_peak_is_what_the_work_holds_at_once():
    kept = []

    def work() -> None:
        torch.zeros(1000)
        kept.append(torch.zeros(10))
        torch.zeros(2000)

    assert DeviceMemory(CPU).peak_of(work) == 4 * 2010


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_tells_its_own_memory():
    memory = DeviceMemory(torch.device("cuda"))
    assert 0 < memory.free() <= torch.cuda.mem_get_info()[1]
    assert memory.peak_of(lambda: torch.zeros(2**20, device="cuda")) >= 2**22
