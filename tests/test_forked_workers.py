"""Tests that several processes run are told of as by one, and none is lost when a process dies or a test hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import script
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
OPTIONS = ["-q", "-rA", "-p", "no:cacheprovider", "-p", "tests.forked_workers", "--processes", "2", "--rootdir", "."]
FILES = {
    "test_one.py": """
import warnings
import pytest

@pytest.fixture(scope="session")
def where(tmp_path_factory):
    print("made once in a process")
    return tmp_path_factory.mktemp("held")

def test_passes(where, tmp_path):
    assert where.parent == tmp_path.parent and where.parent.name.startswith("worker")

def test_fails(where):
    print("said by a test")
    assert 1 == 2

def test_warns():
    warnings.warn("a warning of a test")

@pytest.mark.skip(reason="of no use here")
def test_is_skipped():
    pass
""",
    "test_two.py": """
import os
import pytest

@pytest.mark.parametrize("number", range(3))
def test_dies_in_the_middle(number):
    if number == 1:
        os._exit(7)
""",
    "test_three.py": """
import pytest

@pytest.fixture
def broken():
    yield
    raise OSError("not torn down")

def test_whose_fixture_breaks(broken):
    pass
""",
}


def run(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    for name, text in FILES.items():
        (directory / name).write_text(text)
    command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments, "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    given = {"cwd": directory, "env": environment, "timeout": HANG_SECONDS}
    return subprocess.run(command, capture_output=True, text=True, **given)


def test_every_outcome_of_every_process_is_told_and_the_dead_one_is_named(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    for line in (
        "FAILED test_one.py::test_fails - assert 1 == 2",
        "FAILED test_two.py::test_dies_in_the_middle[1] - The process that ran this test ended with status 7.",
        "PASSED test_two.py::test_dies_in_the_middle[0]",
        "PASSED test_two.py::test_dies_in_the_middle[2]",
        "ERROR test_three.py::test_whose_fixture_breaks - OSError: not torn down",
        "said by a test",
        "UserWarning: a warning of a test",
        "of no use here",
    ):
        assert line in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 failed, 5 passed, 1 skipped, 1 warning, 1 error")


def test_a_run_ends_at_the_first_failure_where_that_is_asked_and_well_where_all_pass(tmp_path: Path) -> None:
    done = run(tmp_path, "-x", "-k", "one")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1]
    done = run(tmp_path, "-k", "passes or (dies and not 1)")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("3 passed, 5 deselected")


HANGING_RUN = """
import sys
import pytest

options = ["-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-c", sys.argv[1], "--rootdir", "."]
sys.exit(pytest.main([*options, "test_hangs.py"]))
"""
HANGING = """
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
    (tmp_path / "test_hangs.py").write_text(HANGING)
    (tmp_path / "run.py").write_text(HANGING_RUN)
    run = script(tmp_path / "run.py", str(ROOT / "pyproject.toml"), cwd=tmp_path)
    assert "FAILED test_hangs.py::test_a_task_that_cannot_be_cancelled" in run.stdout, run.stdout + run.stderr
    assert "ERROR test_hangs.py::test_a_task_that_cannot_be_cancelled" in run.stdout  # its loop could not be closed
    assert "FAILED test_hangs.py::test_a_thread_that_does_not_end" in run.stdout
    assert "Stack of the one that sleeps" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("2 failed, 1 passed")
