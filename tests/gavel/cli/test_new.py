"""`gavel new scenario`: what it writes runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import gavel

pytestmark = pytest.mark.slow


def test_what_is_written_passes_its_own_test_and_can_be_checked(tmp_path: Path):
    made = gavel("new", "scenario", "my-desk", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "Next: gavel check my-desk/scenario.py" in made.stdout
    checked = gavel("check", "my-desk/scenario.py", "--no-prompt", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "look_up_price" in checked.stdout
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my-desk"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize("name", ["my-desk", "../x", "9lives", "a b", "", "ä"])
def test_a_name_that_is_taken_or_none_is_refused(tmp_path: Path, name: str):
    (tmp_path / "my-desk").mkdir()
    made = gavel("new", "scenario", name, cwd=tmp_path)
    assert made.returncode == 1
    assert made.stderr.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["my-desk"]
    assert not list((tmp_path / "my-desk").iterdir())
