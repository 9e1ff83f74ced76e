"""The command itself: its listing, its version, and modules that are loaded only when they are needed."""

import errno
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gavel.cli.app import COMMANDS, GROUPS, app
from gavel.cli.lazy_commands import FIRST
from tests.limits import HANG_SECONDS

TREE = Path(__file__).parents[3]


def test_the_version_is_that_of_the_distribution() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"gavel {version('gavel-rl')}\n"


@pytest.mark.parametrize("arguments", [["-h"], ["train", "-h"], ["judge", "-h"], ["judge", "golden", "-h"]])
def test_every_level_has_a_short_help_option(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


def walked() -> list[list[str]]:
    """Every command and group, as it is typed."""
    found: list[list[str]] = [[]]
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        command = root.resolve_command(typer.Context(root), [name])[1]
        found += [[name], *([name, sub] for sub in getattr(command, "commands", {}))]
    return found


@pytest.mark.parametrize("command", walked(), ids=" ".join)
def test_help_at_80_columns_shows_every_name_whole(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    at: Any = typer.main.get_command(app)
    for name in command:
        at = at.resolve_command(typer.Context(at), [name])[1]
    words = set(re.split(r"[\s,/]+", shown.stdout))
    assert {name for parameter in at.params for name in parameter.opts if name[0] == "-"} <= words
    assert set(getattr(at, "commands", ())) <= words


def test_many_options_begin_with_those_that_a_first_run_needs() -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["train", "--help"]).stdout
    firsts = [line.split()[0].rstrip(",") for line in shown.splitlines() if line.startswith("  --")][: len(FIRST)]
    assert tuple(firsts) == FIRST
    assert {name for names in GROUPS.values() for name in names} == set(COMMANDS)


def test_the_scenarios_are_listed_with_their_tasks() -> None:
    shown = CliRunner().invoke(app, ["scenarios"]).stdout
    assert "returns_desk" in shown
    assert "7,199" in shown


def test_help_on_a_run_shows_the_fields_text_choices_and_default() -> None:
    shown = " ".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", "-h"]).stdout.split())
    for text in (
        "Orders in which the judge sees a group",
        "Default: 2.",
        "grpo|gspo|cispo|reinforce|ppo",
        "--max-cost",
        "--reward",
        "Default: judge=1.",
        "--judge-param",
        "--fresh",
    ):
        assert text in shown


@pytest.mark.slow
def test_completion_knows_commands_and_options() -> None:
    for words, expected in (("gavel tr", "train"), ("gavel train --adv", "--advantage")):
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv = ['gavel']; from gavel.cli import main; main()"],
            env=os.environ
            | {
                "PYTHONPATH": str(TREE),
                "_GAVEL_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        assert expected in done.stdout.split(), done


SPEAKS = """
import logging, warnings, sys
from gavel.cli.terminal import silence_libraries
silence_libraries()
exec(compile("import logging, warnings; logging.getLogger('lib').warning('lib logs'); warnings.warn('lib warns')",
             "/x/site-packages/lib.py", "exec"))
logging.getLogger("mine").warning("mine logs")
logging.getLogger("gavel.trainer").warning("gavel logs")
warnings.warn("mine warns")
"""


def test_what_libraries_log_and_warn_is_not_printed_but_the_users_own_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], env=os.environ | {"PYTHONPATH": str(TREE)}, capture_output=True, text=True
    )
    assert "lib" not in done.stderr.replace("gavel.cli.terminal", ""), done.stderr
    for text in ("mine logs", "gavel logs", "mine warns"):
        assert text in done.stderr


def test_a_full_disk_under_standard_output_is_one_plain_error(monkeypatch, capsys) -> None:
    def full(arguments: list[str]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    module = import_module("gavel.cli.app")
    monkeypatch.setattr(module, "app", full)
    monkeypatch.setattr(sys, "argv", ["gavel", "score"])
    with pytest.raises(SystemExit):
        module.main()
    assert "the output cannot be printed: No space left on device" in capsys.readouterr().err
