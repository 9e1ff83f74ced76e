"""The outcome of a run, read from a run directory that holds a few groups and rows."""

from pathlib import Path
from typing import Any

import pytest

from gavel.reports.run_outcome import Outcome, read_outcome
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.judge.groups import choice


def member(success: bool, reward: float | None = None, task: str = "1") -> Trajectory:
    return Trajectory(
        messages_and_choices=[choice(f"{success}")],
        reward=reward,
        metrics={"success": success},
        metadata={"task": {"id": task}},
    )


def evaluation(step: int, success: float) -> dict[str, Any]:
    return {"split": "held_out", "step": step, "time": 0.0, "success": success, "trajectories": 2, "note": "text"}


def step_row(step: int, trained: int, **figures: float) -> dict[str, Any]:
    return {"split": "train", "step": step, "time": 0.0, "groups_trained": trained, **figures}


def times(**seconds: float) -> dict[str, Any]:
    return {"split": "times", "step": 1, "time": 0.0, **seconds}


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    trajectories = tmp_path / "trajectories"
    for step, successes in ((0, (True, False)), (2, (True, True))):
        store = TrajectoryStore(trajectories / "held_out" / f"{step:06d}.jsonl.zst")
        store.extend(TrajectoryGroup([member(ok, task=f"{task}")]) for task, ok in enumerate(successes))
    TrajectoryStore(trajectories / "train" / "000001.jsonl.zst").append(
        TrajectoryGroup(
            [member(True, 0.9), member(False, 0.2), member(True)], judgement=GroupJudgement(status="scored")
        )
    )
    TrajectoryStore(trajectories / "train" / "000002.jsonl.zst").append(TrajectoryGroup([member(False)]))
    history = [
        evaluation(0, 0.5),
        step_row(1, 1, reward=0.55, **{"left_out/unscored": 1}),
        step_row(2, 0, **{"left_out/unscored": 2}),
        times(rollout=3.0, judge=2.0, train=1.0),
        times(evaluation=4.0),
        evaluation(2, 1.0),
    ]
    return read_outcome(tmp_path, history)


def test_the_curve_runs_from_the_base_to_the_last_evaluation(outcome: Outcome) -> None:
    assert (outcome.base.step, outcome.base.success) == (0, 0.5)
    assert (outcome.trained.step, outcome.trained.success, outcome.trained.tasks) == (2, 1.0, 2)
    assert outcome.trained.measures == {"success": 1.0, "trajectories": 2}
    assert outcome.base.half_width > 0


def test_scores_are_compared_with_success_over_scored_members_only(outcome: Outcome) -> None:
    assert outcome.scored == [(0.9, True), (0.2, False)]
    assert outcome.tau == pytest.approx(1.0)
    assert outcome.statuses == {"scored": 1, "unscored": 1}


def test_counts_and_seconds_are_sums_over_the_rows(outcome: Outcome) -> None:
    assert outcome.rewards == [(1, 0.55)]
    assert outcome.trained_steps == 1
    assert outcome.left_out == {"unscored": 3}
    assert outcome.seconds == {"rollout": 7.0, "judge": 2.0, "train": 1.0}


def test_the_pair_shown_is_a_failure_that_became_a_success(outcome: Outcome) -> None:
    assert outcome.before.metadata["task"] == outcome.after.metadata["task"] == {"id": "1"}
    assert (outcome.before.metrics["success"], outcome.after.metrics["success"]) == (False, True)
