"""`gavel runs`, and what else is named as it lists."""

import fcntl
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.named import read_attempts
from gavel.cli.runs import app
from gavel.trainer.runs.run_listing import RunSummary, read_runs
from tests.forked import gavel
from tests.gavel.reports.made_runs import damage_row


def run_of(root: Path, name: str, successes: list[float], steps: int | None = None) -> Path:
    directory = root / "desk" / name
    directory.mkdir(parents=True)
    (directory / "model.json").write_text("{}")
    (directory / ".lock").touch()
    (directory / "experiment.json").write_text(json.dumps({"judge": ["openai/gpt-5-mini"]}))
    rows = [{"step": n, "split": "held_out", "success": success} for n, success in enumerate(successes)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if steps is not None:
        (directory / "run.toml").write_text(f"[loop]\nsteps = {steps}\n")
    return directory


def only(root: Path) -> RunSummary:
    (run,) = read_runs(root)
    return run


@pytest.mark.parametrize(
    ("successes", "steps", "state", "step", "best"),
    [
        ([0.4, 0.9, 0.8], 2, "finished", 2, "success 0.90 at step 1"),
        ([float("nan"), 0.9, float("inf")], None, "stopped", 2, "success 0.90 at step 1"),
        ([], None, "stopped", 0, "–"),  # nobody knows its steps
    ],
)
def test_a_run_has_its_state_and_its_best_figure(
    tmp_path: Path, successes: list[float], steps: int | None, state: str, step: int, best: str
) -> None:
    directory = run_of(tmp_path, "one", successes, steps=steps)
    run = only(tmp_path)
    assert (run.name, run.state, run.step, run.steps, run.best) == ("desk/one", state, step, steps, best)
    assert run.judge == "openai/gpt-5-mini"
    assert 0 <= run.age < 60
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert only(tmp_path).state == "running"
    if not successes:  # without held-out tasks it is the judge's score
        (directory / "metrics.jsonl").write_text('{"step": 3, "split": "train", "judge_score": 0.71}\n')
        assert only(tmp_path).best == "judge score 0.71 at step 3"


def test_a_run_that_ended_before_its_steps_is_interrupted_and_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    directory = run_of(tmp_path, "one", [0.4, 0.5], steps=9)
    with (directory / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 2, "spl')
    run = only(tmp_path)
    assert (run.state, run.step) == ("interrupted", 1)


@pytest.mark.parametrize(
    ("file", "content", "rounds", "state", "steps"),
    [
        ("experiment.json", '{"imitation": {"steps": 1}}', [], "finished", 1),
        ("experiment.json", '{"imitation": {"steps": 4}}', [], "interrupted", 4),
        ("run.toml", "[evolve]\niterations = 2\n", [0, 1], "finished", 1),
        ("run.toml", "[evolve]\niterations = 2\n", [0, 3], "interrupted", 3),
        ("run.toml", "[evolve]\niterations = 2\n", [1], "interrupted", None),  # the last round has not begun
    ],
)
def test_imitation_and_rounds_are_finished_or_interrupted(
    tmp_path: Path, file: str, content: str, rounds: list[int], state: str, steps: int | None
) -> None:
    directory = run_of(tmp_path, "one", [0.4, 0.5])
    (directory / file).write_text(content)
    with (directory / "metrics.jsonl").open("a") as stream:
        for number, last in enumerate(rounds, 1):
            row = {"step": 0, "split": "iterations", "iteration": number, "last_step": last}
            stream.write(json.dumps(row) + "\n")
    run = only(tmp_path)
    assert (run.state, run.step, run.steps) == (state, 1, steps)


def test_the_command_prints_a_table_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    assert "There are no runs" in CliRunner().invoke(app, [str(tmp_path)]).stdout
    run_of(tmp_path, "one", [0.4], steps=0)
    assert "success 0.40" in CliRunner().invoke(app, [str(tmp_path)]).stdout
    (tmp_path / "file").touch()
    with pytest.raises(GavelError, match="is no directory"):
        list(read_runs(tmp_path / "file"))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_default_directory_that_is_not_there_has_no_runs_yet(tmp_path: Path, more: tuple[str, ...]) -> None:
    assert gavel("runs", *more, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("model.json", b"[]", "not a JSON object"),
        ("model.json", b'{"base_model"', "cannot be read"),
        ("model.json", b'{"format_version": 999}', "format version 999"),
        ("metrics.jsonl", b"\xff\xfe\n", "1 row of"),
        ("metrics.jsonl", None, "directory"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_row_with_the_reason_and_the_others_are_listed(
    tmp_path: Path, file: str, content: bytes | None, reason: str
) -> None:
    run_of(tmp_path, "good", [0.4])
    bad = run_of(tmp_path, "bad", [0.4]) / file
    bad.unlink()
    if content is None:
        bad.mkdir()
    else:
        bad.write_bytes(content)
    found = {run.name: run for run in read_runs(tmp_path)}
    assert found["desk/good"].state == "stopped"
    assert found["desk/bad"].state == "unreadable"
    assert reason in found["desk/bad"].best
    assert "unreadable" in CliRunner().invoke(app, [str(tmp_path)]).stdout


def test_a_damaged_row_leaves_the_others_and_is_told_below_the_table(tmp_path: Path) -> None:
    run = run_of(tmp_path, "one", [0.4, 0.9, 0.8])
    damage_row(run)
    assert only(tmp_path).best == "success 0.80 at step 2"
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert done.stderr.count("1 row of") == 1
    assert "1 row of" in CliRunner().invoke(app, [str(tmp_path), "--json"]).stdout


@pytest.mark.parametrize("file", ["experiment.json", "summary.json", "run.toml"])
def test_a_damaged_file_beside_the_description_leaves_a_gap_in_the_row(tmp_path: Path, file: str) -> None:
    directory = run_of(tmp_path, "one", [0.4])
    for content in (b"[]", b"\xff", b'{"judge": 3, "steps": "many"}', b"loop = 3", b"[loop]\nsteps = [1]"):
        (directory / file).write_bytes(content)
        run = only(tmp_path)
        assert (run.state, run.best) == ("stopped", "success 0.40 at step 0")


def test_runs_of_a_comparison_are_listed_under_their_names(tmp_path: Path) -> None:
    run_of(tmp_path / "compare", "judge-30-steps-seed-0", [0.4], steps=1)
    run_of(tmp_path, "one", [0.4], steps=1)
    assert {run.name for run in read_runs(tmp_path)} == {"desk/one", "compare/desk/judge-30-steps-seed-0"}
    assert {run.name for run in read_runs(tmp_path / "compare")} == {"desk/judge-30-steps-seed-0"}


def test_how_a_file_was_read_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": text, "completion": "x", "task": 1} for text in ("[red]a\x1b[2J", "b")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (group,) = read_attempts(tmp_path / "rows.jsonl", "task")
    assert len(group) == 2
    out, told = capsys.readouterr()
    assert out == ""
    first, note = told.splitlines()
    assert first == "reads as: TRL prompt/completion, 2 rows in 1 group by task"
    assert note.startswith("note: 1 group put together by --by task begin with different messages")


def test_a_program_is_not_read_as_trajectories(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text("import gavel\n")
    with pytest.raises(GavelError) as error:
        read_attempts(tmp_path / "desk.py")
    assert "gavel check" in error.value.remedy
