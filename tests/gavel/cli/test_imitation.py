"""`gavel sft` and `gavel evolve`: what is imitated, what is refused, and whole runs that go on."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.imitation import evolve_app as evolve
from gavel.cli.imitation import sft_app as app
from gavel.judge.errors import JudgeError
from gavel.trainer.runs.run_listing import read_runs
from tests.judge.groups import saying

RUNNER = CliRunner()


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three groups, with the scores 0, .5, 1 and none."""
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path / "runs"))
    return write(tmp_path / "judged.jsonl", [0.0, 0.5, 1.0, None])


def write(file: Path, rewards: Sequence[float | None]) -> Path:
    groups = [saying(*(f"Answer {number}.{at}." for at in range(len(rewards)))) for number in range(3)]
    for group in groups:
        for member, reward in zip(group, rewards, strict=True):
            member.reward = reward
    file.write_text("".join(f"{group.to_json()}\n" for group in groups))
    return file


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "Imitates 3 of 12 trajectories (6 not among their group's best, 3 without a score)."),
        (
            ["--best", "2", "--above", "0.5"],
            "Imitates 3 of 12 trajectories (3 not among their group's best, 3 scored too low, 3 without a score).",
        ),
        (["judged.jsonl"], "Imitates 6 of 24"),
    ],
)
def test_a_dry_run_says_what_would_be_imitated_and_trains_nothing(
    judged: Path, tmp_path: Path, options: list[str], told: str
) -> None:
    result = RUNNER.invoke(app, [str(judged), "--dry-run", *options])
    assert (result.exit_code, told in result.output) == (0, True)
    assert not (tmp_path / "runs").exists()


def test_a_file_without_anyone_to_imitate_is_refused_with_a_remedy(judged: Path) -> None:
    for rewards, options, problem, remedy in (
        ([None, None], [], "no trajectory of the file has a score", "gavel score"),
        ([0.5, 0.25], ["--above", "0.5"], "no score of the file is above 0.5", "lower --above"),
    ):
        error = RUNNER.invoke(app, [str(write(judged, rewards)), "--dry-run", *options]).exception
        assert isinstance(error, GavelError)
        assert (problem in error.message, remedy in error.remedy) == (True, True)


@pytest.mark.slow
def test_a_run_learns_goes_on_and_starts_over(judged: Path, tmp_path: Path) -> None:
    arguments = [str(judged), "--name", "clerk", "--batch-size", "2", "--epochs", "2", "--learning-rate", "2e-3"]
    first = RUNNER.invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert (tmp_path / "runs" / "sft" / "clerk" / "checkpoints" / "000004" / "adapter_model.safetensors").is_file()
    assert "It learned to imitate: loss of a token" in first.output
    (run,) = read_runs(tmp_path / "runs")
    assert (run.name, run.state, run.step, run.steps) == ("sft/clerk", "finished", 4, 4)
    again = RUNNER.invoke(app, arguments)
    assert "The run was finished after step 4." in again.output
    over = RUNNER.invoke(app, [*arguments, "--fresh"])
    assert "step 1/4" in over.output


@pytest.mark.slow
def test_a_run_explores_imitates_and_goes_on_with_more_iterations(judged: Path, tmp_path: Path) -> None:
    command = ["returns_desk", "--tasks", "4", "--attempts", "2", "--evaluation-tasks", "2", "--above", "-1"]
    command += ["--base", str(judged), "--best", "1", "--turn-limits", "0=2"]
    first = RUNNER.invoke(evolve, [*command, "--iterations", "1"])
    assert first.exit_code == 0, first.output
    assert "the best 1 by success 1 above -1 · 3 trajectories of base data" in first.output
    assert "iteration 1/1  8 attempts explored" in first.output
    assert "4 kept, 7 imitated" in first.output
    directory = tmp_path / "runs" / "returns_desk" / "evolve-returns-desk"
    assert "Iterations" in (directory / "report.html").read_text()
    again = RUNNER.invoke(evolve, [*command, "--iterations", "2"])
    assert again.exit_code == 0, again.output
    assert "continuing after step 6" in again.output  # an epoch of 3 and of 7 trajectories is one step each, of three
    assert "iteration 2/2  8 attempts explored" in again.output
    assert "Best: iteration " in again.output
    found = re.findall("<tr>((?:<td>[^<]*</td>){7})</tr>", (directory / "report.html").read_text())
    rows = [re.findall(">([^<]+)<", row) for row in found]
    assert [(row[0], row[1], row[4], row[5]) for row in rows[1:]] == [("1", "8", "7", "6"), ("2", "8", "7", "9")]
    (run,) = read_runs(tmp_path / "runs")
    assert (run.state, run.step, run.steps) == ("finished", 9, 9)
    other = RUNNER.invoke(evolve, [*command, "--iterations", "2", "--seed", "1"])
    assert isinstance(other.exception, GavelError)
    assert "was begun with" in other.exception.message
    text = (directory / "run.toml").read_text()
    assert 'scenario = "returns_desk"' in text
    assert "judged.jsonl" in text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["returns_desk", "--reward", "judge=1", "--attempts", "1"], "attempts to 2"),
        (["returns_desk", "--reward", "praise=1"], "praise"),
        (["returns_desk", "--turn-limits", "0=0"], "turn_limits"),
        (["returns_desk", "--base", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["returns_desk", "--reward", "judge=1", "--judge", "stand-in", "--rubric", "Be nice."], "cannot read"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(judged: Path, options: list[str], problem: str, tmp_path: Path) -> None:
    error = RUNNER.invoke(evolve, options).exception
    assert isinstance(error, GavelError | JudgeError)
    assert problem in error.message
    assert error.remedy
    assert not (tmp_path / "runs").exists()
