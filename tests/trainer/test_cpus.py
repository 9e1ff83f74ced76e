"""Precision and parity hold on other CPUs than this one, as far as one CPU can pass for another, and without
bitsandbytes."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

import gavel.trainer  # noqa: F401  (it sets a filter up)
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HELD = ["policy/test_loading.py", "test_exactness.py"]
CPUS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "AVX512-BF16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
    "no vectors": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
_DIFFER_MOST = "AVX512-BF16"
"""Of the products."""


@dataclass(frozen=True)
class Forks:
    """Runs of pytest over files of tests, of which none fails."""

    process: "subprocess.Popen[str]"

    def passes(self, files: list[str], output: Path, *arguments: str, **variables: str) -> str:
        """What it prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        command = ["-q", "-p", "no:cacheprovider", *arguments, *(f"tests/trainer/{name}" for name in files)]
        print(json.dumps([variables, command, str(output)]), file=self.process.stdin, flush=True)
        hanging = Timer(HANG_SECONDS, self.process.kill)
        hanging.start()
        status = self.process.stdout.readline()
        hanging.cancel()
        assert status == "0\n", output.read_text()
        return output.read_text()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    command = [sys.executable, "-m", "tests.trainer.cpu_forks"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:
        yield Forks(process)
        process.kill()


THOROUGH = (pytest.param(kind, marks=pytest.mark.thorough) for kind in ("AVX2", "no vectors"))


@pytest.mark.parametrize("kind", [_DIFFER_MOST, *THOROUGH])
def test_other_instruction_sets_compute_the_same(forks: Forks, tmp_path: Path, kind: str) -> None:
    taken_for, *_ = forks.passes(HELD, tmp_path / "output", **CPUS[kind]).splitlines()
    forced = CPUS[kind].get("ATEN_CPU_CAPABILITY")
    assert forced in (None, taken_for.lower())


@pytest.mark.thorough  # importing TRL takes longest of all; both sides of the comparison run on one CPU
def test_parity_holds_where_products_differ_most(forks: Forks, tmp_path: Path) -> None:
    forks.passes(["learner/test_parity_trl.py"], tmp_path / "output", **CPUS[_DIFFER_MOST])


def test_without_bitsandbytes_the_tests_of_four_bits_are_skipped_with_the_reason(forks: Forks, tmp_path: Path) -> None:
    output = forks.passes(HELD, tmp_path / "output", "-p", "tests.trainer.without_bitsandbytes", "-rs")
    assert "bitsandbytes is in the dev extra" in output


def test_that_bitsandbytes_misses_a_kernel_which_is_not_used_is_not_told() -> None:
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    assert logger.level == logging.ERROR, "a warning is not told, an error is"
