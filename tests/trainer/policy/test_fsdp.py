"""A sharded base is read by parts, and computes what the whole one does."""

import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.distributed import World, join
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import sequence
from tests.trainer.processes import led

pytestmark = pytest.mark.slow

_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""
_FORGET_PEAK = Path("/proc/self/clear_refs")
_COMMON: dict[str, Any] = {"vocab_size": 832, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_RESULTS: list[Any] = []
"""Of `prepare`, which every process calls, for `lead`, which one does."""


def saved(directory: Path, model: Any) -> int:
    """The bytes of the decoder's layers."""
    model.save_pretrained(directory)
    for path in EMBEDDED_PATH.glob("token*"):
        (directory / path.name).write_bytes(path.read_bytes())
    return sum(parameter.nbytes for parameter in model.model.layers.parameters())


def policy_of(directory: Path, *, sharded: bool, experts: bool = False) -> Policy:
    lora = LoraSettings(rank=4, experts=experts)
    return Policy(str(directory), lora, "qwen3", PolicySettings(dtype="float32"), sharded=sharded)


def logprobs(policy: Policy) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        batch = [sequence([1, 2, 3], [(5 * n + at) % 800 for n in range(40)], [-1.0] * 40) for at in (0, 7)]
        return trained_logprobs(policy, batch).float()


def _memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def load(directory: Path, warm: Path, rank: int, *, sharded: bool = True, experts: bool = False) -> None:
    """What every process does, told to all."""
    world = join()
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 16)  # so that freed tensors are given back
    policy_of(warm, sharded=sharded)  # imports, and the first collective operations
    _FORGET_PEAK.write_text("5")
    before = _memory("VmRSS")
    policy = policy_of(directory, sharded=sharded, experts=experts)
    peak = _memory("VmHWM") - before
    layers = policy.decoder().layers.parameters()
    kept = sum(p.to_local().nbytes for p in layers if isinstance(p, DTensor))
    _RESULTS.extend(world.gather((peak, kept, logprobs(policy))))


def results(world: World) -> list[tuple[int, int, torch.Tensor]]:
    return _RESULTS


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    saved(tmp_path / "warm", Qwen3ForCausalLM(Qwen3Config(**_COMMON, hidden_size=64, num_hidden_layers=1)))
    return tmp_path / "warm"


@pytest.mark.skipif(not _FORGET_PEAK.exists(), reason="the peak of a process is read from Linux' /proc")
def test_each_process_reads_its_part_of_the_base_and_computes_the_same(tmp_path: Path, warm: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(**_COMMON, hidden_size=512, intermediate_size=2048, num_hidden_layers=16)
    size = 2 * saved(tmp_path / "deep", Qwen3ForCausalLM(config).bfloat16())  # in float32, so no file is the weights
    alone = led(results, prepare=partial(load, tmp_path / "deep", warm, sharded=False))
    assert all(peak > size for peak, _, _ in alone), "what is measured is the base"
    together = led(results, prepare=partial(load, tmp_path / "deep", warm))
    for (peak, kept, found), (whole, _, expected) in zip(together, alone, strict=True):
        assert kept == pytest.approx(size / 2, rel=0.01)
        assert peak < 0.75 * whole
        assert torch.equal(found, expected)


def test_experts_that_a_checkpoint_holds_one_by_one_are_sharded_too(tmp_path: Path, warm: Path) -> None:
    torch.manual_seed(0)
    config = MixtralConfig(**_COMMON, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_local_experts=4)
    size = saved(tmp_path / "experts", MixtralForCausalLM(config))
    expected = logprobs(policy_of(tmp_path / "experts", sharded=False, experts=True))
    for _, kept, found in led(results, prepare=partial(load, tmp_path / "experts", warm, experts=True)):
        assert kept == pytest.approx(size / 2, rel=0.05)
        assert torch.equal(found, expected)
