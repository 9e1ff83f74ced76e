"""Precision and parity hold on other CPUs than this one, as far as one CPU can pass for another, and without
bitsandbytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HELD = ["policy/test_loading.py", "test_exactness.py"]
CPUS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "AVX512-BF16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
    "no vectors": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
"""What PyTorch reads when it computes for the first time, and bitsandbytes when it is imported."""
RUN = "import sys, pytest, torch; print(torch.backends.cpu.get_cpu_capability()); sys.exit(pytest.main(sys.argv[1:]))"
HIDE = "import sys; sys.modules['bitsandbytes'] = None; "


def passes(program: str, files: list[str], *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    paths = [f"tests/trainer/{name}" for name in files]
    given = {"cwd": ROOT, "env": environment, "timeout": HANG_SECONDS}
    done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


THOROUGH = (pytest.param(kind, marks=pytest.mark.thorough) for kind in ("AVX2", "no vectors"))


@pytest.mark.parametrize("kind", ["AVX512-BF16", *THOROUGH])
def test_other_instruction_sets_compute_the_same(kind: str) -> None:
    taken_for, *_ = passes(RUN, HELD, **CPUS[kind]).splitlines()
    assert CPUS[kind].get("ATEN_CPU_CAPABILITY") in (None, taken_for.lower())


@pytest.mark.thorough  # both sides of the comparison run on the CPU whose products differ most
def test_parity_holds_where_products_differ_most() -> None:
    passes(RUN, ["learner/test_parity_trl.py"], **CPUS["AVX512-BF16"])


def test_without_bitsandbytes_the_tests_of_four_bits_are_skipped_with_the_reason() -> None:
    assert "bitsandbytes is in the dev extra" in passes(HIDE + RUN, HELD, "-rs")
