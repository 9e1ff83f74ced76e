"""Precision and parity hold on other CPUs than this one, as far as one CPU can pass for another, and without
bitsandbytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

ROOT = Path(__file__).parents[2]
HELD = ["policy/test_loading.py", "test_exactness.py"]
EXACT = [*HELD, "learner/test_parity_trl.py"]
CPUS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "AVX512-BF16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
    "no vectors": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}


def passes(files: list[str], *arguments: str, **environment: str) -> str:
    """Output of a pytest of its own over the files' tests, none of which fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [*command, *(f"tests/trainer/{name}" for name in files)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", CPUS)
def test_other_instruction_sets_compute_the_same(kind: str) -> None:
    passes(EXACT, **CPUS[kind])


@pytest.mark.slow
def test_without_bitsandbytes_the_tests_of_four_bits_are_skipped_with_the_reason() -> None:
    assert "bitsandbytes is in the dev extra" in passes(HELD, "-p", "tests.trainer.without_bitsandbytes", "-rs")
