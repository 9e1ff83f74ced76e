"""The listing of runs, from run directories alone; and what `--fresh` deletes."""

import fcntl
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.cli.runs import RunSummary, app, delete_run, read_runs
from gavel.errors import GavelError
from gavel.trainer.runs.run_directory import RunDirectory, RunDirectoryError


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


def test_a_run_that_reached_its_steps_is_finished_and_has_its_best_figure(tmp_path: Path) -> None:
    run_of(tmp_path, "one", [0.4, 0.9, 0.8], steps=2)
    run = only(tmp_path)
    assert (run.name, run.state, run.step, run.steps) == ("desk/one", "finished", 2, 2)
    assert (run.best, run.judge) == ("success 0.90 at step 1", "openai/gpt-5-mini")
    assert 0 <= run.age < 60


def test_a_run_that_ended_before_its_steps_is_interrupted_and_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    directory = run_of(tmp_path, "one", [0.4, 0.5], steps=9)
    with (directory / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 2, "spl')
    run = only(tmp_path)
    assert (run.state, run.step) == ("interrupted", 1)


def test_a_run_whose_lock_is_held_is_running_and_is_not_deleted(tmp_path: Path) -> None:
    directory = run_of(tmp_path, "one", [0.4])
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert only(tmp_path).state == "running"
        with pytest.raises(RunDirectoryError, match="another process"):
            delete_run(tmp_path, "desk", "one")
    assert (directory / "metrics.jsonl").exists()


def test_a_run_of_which_nobody_knows_the_steps_is_stopped(tmp_path: Path) -> None:
    run_of(tmp_path, "one", [])
    run = only(tmp_path)
    assert (run.state, run.steps, run.best) == ("stopped", None, "–")


def test_without_held_out_tasks_the_best_score_of_the_judge_is_shown(tmp_path: Path) -> None:
    directory = run_of(tmp_path, "one", [])
    (directory / "metrics.jsonl").write_text('{"step": 3, "split": "train", "judge_score": 0.71}\n')
    assert only(tmp_path).best == "judge score 0.71 at step 3"


def test_the_command_prints_a_table_and_says_when_there_is_nothing(tmp_path: Path) -> None:
    assert "There are no runs" in CliRunner().invoke(app, [str(tmp_path)]).stdout
    run_of(tmp_path, "one", [0.4], steps=0)
    assert "success 0.40" in CliRunner().invoke(app, [str(tmp_path)]).stdout
    (tmp_path / "file").touch()
    with pytest.raises(GavelError, match="is no directory"):
        list(read_runs(tmp_path / "file"))


def test_a_fresh_start_deletes_the_run_and_nothing_beside_it(tmp_path: Path) -> None:
    one, two = run_of(tmp_path, "one", [0.1]), run_of(tmp_path, "two", [0.2])
    delete_run(tmp_path, "desk", "one")
    assert [path.name for path in one.iterdir()] == [".lock"]
    assert (two / "metrics.jsonl").exists()
    delete_run(tmp_path, "desk", "never-begun")
    assert not (tmp_path / "desk" / "never-begun").exists()


def test_a_fresh_start_refuses_a_directory_that_is_no_run(tmp_path: Path) -> None:
    notes = tmp_path / "desk" / "thesis" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.touch()
    with pytest.raises(RunDirectoryError, match="no run"):
        delete_run(tmp_path, "desk", "thesis")
    assert notes.exists()
    RunDirectory(tmp_path, "desk", "thesis").close()  # its lock is free again
