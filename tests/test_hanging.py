"""A test that hangs fails by its name, and those after it run."""

from pathlib import Path

import pytest

from tests.forked import script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
RUN = """
import sys
import pytest

options = ["-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-c", sys.argv[1], "--rootdir", "."]
sys.exit(pytest.main([*options, "test_hangs.py"]))
"""
TESTS = """
import asyncio
import threading
import time

import pytest


@pytest.mark.timeout(0.5)
async def test_a_task_that_cannot_be_cancelled():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


@pytest.mark.timeout(0.5)
def test_a_thread_that_does_not_end():
    thread = threading.Thread(target=time.sleep, args=(600,), name="the one that sleeps", daemon=True)
    thread.start()
    thread.join()


def test_that_comes_after():
    pass
"""


def test_a_test_that_hangs_is_named_with_the_stacks_of_all_threads_and_ends_no_other(tmp_path):
    (tmp_path / "test_hangs.py").write_text(TESTS)
    (tmp_path / "run.py").write_text(RUN)
    run = script(tmp_path / "run.py", str(ROOT / "pyproject.toml"), cwd=tmp_path)
    assert "FAILED test_hangs.py::test_a_task_that_cannot_be_cancelled" in run.stdout, run.stdout + run.stderr
    assert "ERROR test_hangs.py::test_a_task_that_cannot_be_cancelled" in run.stdout  # its loop could not be closed
    assert "FAILED test_hangs.py::test_a_thread_that_does_not_end" in run.stdout
    assert "Stack of the one that sleeps" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("2 failed, 1 passed")
