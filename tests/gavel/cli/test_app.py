"""The program: help, its commands in this process and in one of its own, errors as one sentence."""

import errno
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from gavel.cli.app import COMMANDS, GROUPS, app
from gavel.cli.lazy_commands import FIRST
from gavel.trainer.config import Loss
from tests.forked import gavel, script, succeed

TREE = Path(__file__).parents[3]
LOSSES = [kind.model_fields["kind"].default for kind in get_args(get_args(Loss)[0])]


def command_of(*names: str) -> Any:
    at: Any = typer.main.get_command(app)
    for name in names:
        at = at.resolve_command(typer.Context(at), [name])[1]
    return at


def walked() -> list[list[str]]:
    """Every command and group, as it is typed."""
    subs = [[name, sub] for name in COMMANDS for sub in getattr(command_of(name), "commands", {})]
    return [[], *([name] for name in COMMANDS), *subs]


@pytest.mark.parametrize("command", walked(), ids=" ".join)
def test_help_at_80_columns_shows_every_name_whole(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*command, "-h"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == CliRunner().invoke(app, [*command, "--help"]).stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    at = command_of(*command)
    words = set(re.split(r"[\s,/]+", shown.stdout))
    assert {name for parameter in at.params for name in parameter.opts if name[0] == "-"} <= words
    assert set(getattr(at, "commands", ())) <= words


def test_help_on_a_run_begins_with_what_a_first_run_needs_and_tells_choices_and_defaults() -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["train", "--help"]).stdout
    firsts = [line.split()[0].rstrip(",") for line in shown.splitlines() if line.startswith("  --")][: len(FIRST)]
    assert tuple(firsts) == FIRST
    assert {name for names in GROUPS.values() for name in names} == set(COMMANDS)
    words = " ".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train", "-h"]).stdout.split())
    assert all(text in words for text in ("Default: 2.", "|".join(LOSSES), "Default: judge=1."))


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


EXAMPLES = TREE / "examples"


def mistake(*arguments: str, cwd: Path, **environment: str) -> str:
    """What a command says of a user's mistake: one sentence, a remedy, no traceback, nothing written."""
    before = sorted(cwd.rglob("*"))
    result = gavel(*arguments, cwd=cwd, **environment)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()  # libraries may have lines of their own among them
    (start,) = (number for number, line in enumerate(lines) if line.startswith("error: "))
    message, remedy = lines[start : start + 2]
    assert remedy.startswith("       "), result.stderr
    assert sorted(cwd.rglob("*")) == before
    return f"{message}\n{remedy}"


BASE = "base:embedded/returns-desk"
UNREAD = ["cannot read 1 of 6 rules", '`- says "Canberra" or "180"`']


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train retruns", ["returns_desk"]),
        ("train returns_desk --judge openai/gpt-5-mini", ["OPENAI_API_KEY", "stand-in"]),
        ("demo --judge openai/gpt-5-mini", ["OPENAI_API_KEY"]),
        ("runs nothere", ["nothere", "GAVEL_RUNS"]),
        ("view none", ["there is no directory"]),
        ("report desk/none", ["there is no run desk/none"]),
        ("judge report none.jsonl", ["none.jsonl cannot be read"]),
        ("judge report rows.jsonl", ["gavel score"]),
        ("check returns_desk --task nobody", ["no task with the id 'nobody'", "1001, 1003"]),
        ("check missing.py", ["there is no file"]),
        ("check writing --agent players", ["writing has no players of its own"]),
        ("check returns_desk --agent openai/gpt-5-mini", ["OPENAI_API_KEY"]),
        ("compare returns_desk --rewards taste", ["there is no reward 'taste'"]),
        ("push desk/clerk@12 store", ["there is no run 'desk/clerk@12' in runs", "give the same --backend-url"]),
        ("view rows.jsonl --port 0 --no-open", ["gavel score rows.jsonl --out"]),
        (f"evaluate returns_desk --models {BASE},typo", ["typo is no run"]),
        (f"evaluate returns_desk --models {BASE},{BASE}", ["named twice"]),
        *((f"new scenario {name}", []) for name in ("my-desk", "../x", "9lives", "ä")),
        ("train mine.py --steps 1", UNREAD),
        (f"evaluate mine.py --models {BASE} --judge stand-in", UNREAD),
        ("compare mine.py --model embedded/returns-desk --rewards judge,success --seeds 1 --steps 1", UNREAD),
    ],
)
def test_a_mistake_is_refused_before_any_work(command: str, told: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('[{"role": "user", "content": "hello"}]\n')
    (tmp_path / "my-desk").mkdir()
    source = (EXAMPLES / "returns.py").read_text()
    source = source.replace("- calls refund only after", "- says Canberra or 180.\n- calls refund only after")
    (tmp_path / "mine.py").write_text(source.replace("    max_turns=4,", "    max_turns=4,\n    success=bool,"))
    said = mistake(*command.split(), cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert all(text in said for text in told), said


@pytest.mark.slow
def test_a_scenario_file_trains_from_the_command_line_and_by_itself(tmp_path: Path) -> None:
    small = "--steps 1 --tasks 2 --group-size 3 --evaluation-tasks 4 --max-tokens 32 --model embedded/returns-desk"
    trained = succeed("train", str(EXAMPLES / "returns.py"), *small.split(), cwd=tmp_path)
    assert "held-out tasks" in trained.stdout
    assert "The judge tells them apart" in script(EXAMPLES / "returns.py", "check", cwd=tmp_path).stdout
    again = script(EXAMPLES / "returns.py", "evaluate", "--tasks", "4", "--max-tokens", "32", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "returns-desk@1" in again.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_a_run_is_not_continued_as_another_experiment_and_a_mistyped_name_makes_none(tmp_path: Path) -> None:
    sizes = "--steps 1 --tasks 2 --group-size 2 --evaluation-tasks 2 --max-tokens 16 --model embedded/returns-desk"
    train = ["train", str(EXAMPLES / "returns.py"), *sizes.split()]
    succeed(*train, cwd=tmp_path)
    assert "seed 0, not 1" in mistake(*train, "--seed", "1", cwd=tmp_path)
    (run_file,) = tmp_path.glob("runs/returns/*/run.toml")
    run_file.with_name("my-notes.txt").touch()
    begun = {path: path.read_bytes() for path in tmp_path.glob("runs/**/*") if path.is_file()}
    mistake("train", str(run_file), "--fresh", "--model", "missing/model", cwd=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("runs/**/*") if path.is_file()} == begun
    afresh = succeed("train", str(run_file), "--seed", "1", "--fresh", cwd=tmp_path)
    assert "my-notes.txt" in afresh.stdout
    assert "seed = 1" in run_file.read_text()
    dry = [gavel("train", str(run_file), "--seed", "1", "--steps", n, "--dry-run", cwd=tmp_path) for n in "14"]
    assert ["calls" in each.stdout for each in dry] == [False, True]
    assert "3 steps of 2 groups" in dry[1].stdout
    longer = gavel("train", str(run_file), "--seed", "1", "--steps", "2", cwd=tmp_path)
    assert "begun for 1 step" in " ".join(longer.stdout.split())
    assert "returns/typo is no run" in mistake("evaluate", train[1], "--name", "typo", cwd=tmp_path)


@pytest.mark.slow
def test_the_demo_leaves_a_report_and_a_summary(tmp_path: Path) -> None:
    succeed("demo", "--steps", "1", "--judge", "stand-in", "--seed", "3", cwd=tmp_path)
    (summary_file,) = tmp_path.glob("runs/demo/*/summary.json")
    summary = json.loads(summary_file.read_text())
    assert summary["heldout_tasks"] >= 256
    assert 0.30 <= summary["base"]["heldout_success"] <= 0.55
    assert (summary["trained_steps"], summary["seed"], summary["steps"]) == (1, 3, 1)
    report = summary_file.with_name("report.html").read_text()
    assert "http://" not in report.replace("http://www.w3.org", "")
