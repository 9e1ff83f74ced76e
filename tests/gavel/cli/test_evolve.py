"""`gavel evolve`: a whole small run that goes on, what is imitated beside the attempts, and what is refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.evolve import app
from gavel.judge.errors import JudgeError
from gavel.trainer.runs.run_listing import read_runs
from tests.gavel.cli.test_sft import write

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path / "runs"))


@pytest.mark.slow
def test_a_run_explores_imitates_and_goes_on_with_more_iterations(tmp_path: Path) -> None:
    judged = write(tmp_path / "judged.jsonl", [0.0, 0.5, 1.0, None])
    command = ["returns_desk", "--tasks", "4", "--attempts", "2", "--evaluation-tasks", "2", "--above", "-1"]
    command += ["--base", str(judged), "--best", "1", "--turn-limits", "0=2"]
    first = RUNNER.invoke(app, [*command, "--iterations", "1"])
    assert first.exit_code == 0, first.output
    assert "the best 1 by success 1 above -1 · 3 trajectories of base data" in first.output
    assert "iteration 1/1  8 attempts explored" in first.output
    assert "4 kept, 7 imitated" in first.output
    directory = tmp_path / "runs" / "returns_desk" / "evolve-returns-desk"
    assert "Iterations" in (directory / "report.html").read_text()
    again = RUNNER.invoke(app, [*command, "--iterations", "2"])
    assert again.exit_code == 0, again.output
    assert "continuing after step 6" in again.output  # an epoch of 3 and of 7 trajectories is one step each, of three
    assert "iteration 2/2  8 attempts explored" in again.output
    rows = [line.split() for line in again.output.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [("1", "8", "7", "6"), ("2", "8", "7", "9")]
    (run,) = read_runs(tmp_path / "runs")
    assert (run.state, run.step, run.steps) == ("finished", 9, 9)
    other = RUNNER.invoke(app, [*command, "--iterations", "2", "--seed", "1"])
    assert isinstance(other.exception, GavelError)
    assert "was begun with" in other.exception.message
    text = (directory / "run.toml").read_text()
    assert 'scenario = "returns_desk"' in text
    assert "judged.jsonl" in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["nowhere"], "there is no scenario"),
        (["returns_desk", "--reward", "judge=1", "--attempts", "1"], "attempts to 2"),
        (["returns_desk", "--reward", "praise=1"], "praise"),
        (["returns_desk", "--turn-limits", "0=0"], "turn_limits"),
        (["returns_desk", "--base", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["booking_desk"], "knows the scenario returns_desk alone"),
        (["returns_desk", "--reward", "judge=1", "--judge", "stand-in", "--rubric", "Be nice."], "cannot read"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(options: list[str], problem: str, tmp_path: Path) -> None:
    error = RUNNER.invoke(app, options).exception
    assert isinstance(error, GavelError | JudgeError)
    assert problem in error.message
    assert error.remedy
    assert not (tmp_path / "runs").exists()
