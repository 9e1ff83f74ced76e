"""`gavel sft`: what is chosen from a file, what is refused, and a whole run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavel.base.errors import GavelError
from gavel.cli.sft import app
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.runs.run_listing import read_runs

RUNNER = CliRunner()


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three groups, with the scores 0, .5, 1 and none."""
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path / "runs"))
    return write(tmp_path / "judged.jsonl", [0.0, 0.5, 1.0, None])


def write(file: Path, rewards: list[float | None]) -> Path:
    groups = [
        TrajectoryGroup(
            Trajectory(
                messages_and_choices=[
                    {"role": "user", "content": f"May I return order {number}?"},
                    {"role": "assistant", "content": f"Answer {at}."},
                ],
                reward=reward,
            )
            for at, reward in enumerate(rewards)
        )
        for number in range(3)
    ]
    file.write_text("".join(f"{group.to_json()}\n" for group in groups))
    return file


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "Imitates 3 of 12 trajectories (6 not among their group's best, 3 without a score)."),
        (["--best", "2"], "Imitates 6 of 12 trajectories (3 not among their group's best, 3 without a score)."),
        (
            ["--best", "2", "--above", "0.5"],
            "Imitates 3 of 12 trajectories (3 not among their group's best, 3 scored too low, 3 without a score).",
        ),
        (["--best", "9"], "Imitates 9 of 12 trajectories (3 without a score)."),
    ],
)
def test_a_dry_run_says_what_would_be_imitated_and_trains_nothing(
    judged: Path, tmp_path: Path, options: list[str], told: str
) -> None:
    result = RUNNER.invoke(app, [str(judged), "--dry-run", *options])
    assert (result.exit_code, told in result.output) == (0, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("rewards", "options", "told"),
    [
        (
            [0.5, 0.5],
            [],
            "3 of 3 groups had no best member, because all scores of a group are alike: the first in the",
        ),
        ([0.5] * 3, ["--best", "2"], "alike: the first 2 in the file are imitated. A judge that tells members apart"),
        ([0.5, 0.5], ["--best", "2"], ""),
        ([0.5, 0.5, 0.25], [], ""),
        ([0.5], [], ""),
    ],
)
def test_groups_whose_scores_are_alike_are_told_once(judged: Path, rewards, options: list[str], told: str) -> None:
    output = RUNNER.invoke(app, [str(write(judged, rewards)), "--dry-run", *options]).output
    assert output.count("had no best member") == bool(told)
    assert told in output


def test_several_files_are_read_as_one(judged: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", [0.25])
    assert "Imitates 6 of 15" in RUNNER.invoke(app, [str(judged), str(other), "--dry-run"]).output


@pytest.mark.parametrize(
    ("rewards", "options", "problem", "remedy"),
    [
        ([None, None], [], "no trajectory of the file has a score", "gavel score"),
        ([0.5, 0.25], ["--above", "0.5"], "no score of the file is above 0.5", "lower --above"),
    ],
)
def test_a_file_without_anyone_to_imitate_is_refused_with_a_remedy(
    judged: Path, rewards: list[float | None], options: list[str], problem: str, remedy: str
) -> None:
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
