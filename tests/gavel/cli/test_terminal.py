"""What is printed, whatever characters the terminal has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gavel.cli.terminal import replace_unprintable
from tests.limits import HANG_SECONDS

TREE = Path(__file__).parents[3]
NARROW = ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


@pytest.mark.parametrize(
    ("text", "printed"),
    [("torch ✓", "torch yes"), ("gpu –", "gpu -"), ("a → b", "a -> b"), ("±0.03", "+/-0.03"), ("Zoë", "Zo\\xeb")],
)
def test_characters_that_an_encoding_lacks_are_printed_as_others(text: str, printed: str) -> None:
    replace_unprintable()
    assert text.encode("ascii", "gavel.printable").decode() == printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "narrow"),
    [
        (["doctor"], NARROW[0]),
        (["doctor"], NARROW[1]),
        (["scenarios"], NARROW[1]),
        (["train", "--help"], NARROW[0]),
        (["train", "no_scenario–"], NARROW[1]),
    ],
)
def test_every_command_can_print_where_there_is_only_ascii(command: list[str], narrow: dict[str, str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(TREE)} | narrow
    done = subprocess.run(
        [sys.executable, "-m", "gavel", *command], capture_output=True, env=environment, timeout=HANG_SECONDS
    )
    assert done.returncode == ("no_scenario–" in command), done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_a_configuration_is_printed_as_utf_8_whatever_the_terminal_is(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(TREE), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "gavel", "config", "--name", "Zoë–1"]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=HANG_SECONDS)
    assert 'name = "Zoë–1"' in done.stdout.decode("utf-8"), done.stderr
