"""`gavel runs`, and what is named as it lists: `gavel report`, `gavel export trajectories`."""

import fcntl
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.named import read_attempts
from gavel.cli.runs import app
from gavel.trainer.runs.run_listing import RunSummary, read_runs
from tests.forked import succeed
from tests.gavel.cli.test_app import mistake
from tests.gavel.reports.made import damage_row, made_run, store
from tests.scenarios.formats.attempts import both, whole


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
    assert "There are no runs" in CliRunner().invoke(app, [str(tmp_path)]).stdout
    succeed("runs", "--json", cwd=tmp_path)
    directory = run_of(tmp_path, "one", [0.4, 0.5], steps=9)
    with (directory / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 2, "spl')
    run = only(tmp_path)
    assert (run.state, run.step) == ("interrupted", 1)
    assert "success 0.50" in CliRunner().invoke(app, [str(tmp_path)]).stdout
    (tmp_path / "file").touch()
    with pytest.raises(GavelError, match="is no directory"):
        list(read_runs(tmp_path / "file"))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
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


def test_damaged_files_leave_a_gap_in_the_row_and_are_told(tmp_path: Path) -> None:
    directory = run_of(tmp_path, "one", [0.4, 0.9, 0.8])
    damage_row(directory)
    for file in ("experiment.json", "summary.json", "run.toml"):
        for content in (b"[]", b"\xff", b'{"judge": 3, "steps": "many"}', b"[loop]\nsteps = [1]"):
            (directory / file).write_bytes(content)
            run = only(tmp_path)
            assert (run.state, run.best) == ("stopped", "success 0.80 at step 2")
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert done.stderr.count("1 row of") == 1


def test_runs_are_listed_by_where_they_stand_below_a_directory(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run_of(root / "compare", "judge-30-steps-seed-0", [0.4], steps=1)
    run_of(root, "one", [0.4], steps=1)
    names = {"desk/one", "compare/desk/judge-30-steps-seed-0"}
    assert {run.name for run in read_runs(root)} == names
    assert {run.name for run in read_runs(tmp_path)} == {f"runs/{name}" for name in names}
    assert {run.name for run in read_runs(root / "desk")} == {"one"}
    assert {run.name for run in read_runs(root / "compare")} == {"desk/judge-30-steps-seed-0"}


def test_a_run_is_reported_by_its_name_or_directory_with_what_is_damaged(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "desk" / "one")
    done = succeed("report", str(run), "--out", "page.html", cwd=tmp_path)
    outcome, page = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert ("success" in outcome, page) == (True, "Report: page.html")
    assert f"gavel view {run}" in done.stderr
    assert "warning" not in done.stderr.lower()
    assert (tmp_path / "page.html").is_file()
    damage_row(run)
    (run / "model.json").write_text('{"base_model"')
    done = succeed("report", "desk/one", cwd=tmp_path, GAVEL_RUNS="runs")
    assert done.stdout.strip().endswith("one/report.html")
    page = (run / "report.html").read_text()
    for told in ("1 row of runs/desk/one/metrics.jsonl cannot be read (line 2)", "one/model.json cannot be read"):
        assert done.stderr.count(told) == page.count(told) == 1
    assert "Curves" in page


def store_run(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "model.json").write_text(json.dumps({"name": "one", "project": "desk"}))
    for split, step in (("train", 1), ("train", 2), ("val/hard", 2)):
        store(path, step, split, run="").append(both()[0].group)


def test_a_run_s_trajectories_are_written_and_what_is_lost_is_named(tmp_path: Path) -> None:
    store_run(tmp_path / "runs" / "desk" / "one")
    done = succeed("export", "trajectories", "desk/one", "--format", "otel", "-o", "all.jsonl", cwd=tmp_path)
    assert done.stdout.strip() == "wrote 6 attempts of 3 groups as OpenTelemetry spans to all.jsonl"
    assert "left out or changed: 9 × sampled turn with the token ids of its prompt" in done.stderr
    assert '"stringValue":"train/1/0/0"' in (tmp_path / "all.jsonl").read_text()
    chosen = ("--split", "val/hard", "--step", "2", "--format", "otel", "-o", "hard.jsonl")
    succeed("export", "trajectories", "desk/one", *chosen, cwd=tmp_path)
    assert len((tmp_path / "hard.jsonl").read_text().splitlines()) == 2


def test_a_file_of_another_program_is_written_in_a_third_one_s_format(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": whole().messages()}) + "\n")
    done = succeed("export", "trajectories", "in.jsonl", "--format", "agenttraj", "-o", "out.jsonl", cwd=tmp_path)
    assert "reads as: OpenAI messages" in done.stderr
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [turn["loss"] for turn in json.loads(line)["conversations"]] == [None, False, None, True, None, True]


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    store_run(tmp_path / "run")
    (tmp_path / "in.jsonl").write_text("{}\n")
    form = ("--format", "otel", "-o", "out.jsonl")
    for arguments, told in (
        (("desk/none", *form), "there is no run and no file desk/none"),
        (("run", "--step", "9", *form), "train (steps 1 to 2), val/hard (steps 2)"),
        (("in.jsonl", "--step", "9", *form), "is no run, so it has no splits and steps"),
        (("run", "--format", "otel", "-o", "run"), "exists already"),
    ):
        assert told in mistake("export", "trajectories", *arguments, cwd=tmp_path)


def test_how_a_file_was_read_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": text, "completion": "x", "task": 1} for text in ("[red]a\x1b[2J", "b")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (group,) = read_attempts([tmp_path / "rows.jsonl"], "task")
    assert len(group) == 2
    out, told = capsys.readouterr()
    assert out == ""
    first, note = told.splitlines()
    assert first == "reads as: TRL prompt/completion, 2 rows in 1 group by task"
    assert note.startswith("note: 1 group put together by --by task begin with different messages")
