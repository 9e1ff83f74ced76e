"""Run directories for tests of reports: a few rows of metrics and groups of hostile trajectories."""

import json
from pathlib import Path

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.gavel.reports.html_page import HOSTILE
from tests.judge.groups import choice


def made_run(
    directory: Path,
    *,
    final: float = 0.9,
    judged: bool = True,
    steps: int = 3,
    says: str = HOSTILE,
    scenario: str | None = None,
) -> Path:
    """A run of `steps` steps whose held-out success rises from 0.5 to `final`; `says`: its last held-out replies."""
    directory.mkdir(parents=True)
    (directory / "model.json").write_text("{}")
    if scenario is not None:
        experiment = {"scenario": scenario, "loop": {"seed": 0, "final_tasks": 3, "max_tokens": 40}}
        (directory / "experiment.json").write_text(json.dumps(experiment))
    for step, reply in ((0, "?"), (steps, says)):
        attempts = [
            Trajectory(
                messages_and_choices=[{"role": "user", "content": HOSTILE}, choice(reply)],
                metrics={"success": True},
                metadata={"task": {"id": f"task-{number}"}},
            )
            for number in range(3)
        ]
        TrajectoryStore(directory / "trajectories" / "held_out" / f"{step:06d}.jsonl.zst").append(
            TrajectoryGroup(attempts)
        )
    rows: list[dict[str, object]] = [
        {"split": "held_out", "step": 0, "success": 0.5, "trajectories": 64.0, "words": 20.0},
        {"split": "held_out", "step": steps, "success": final, "trajectories": 64.0, "words": 10 * final},
    ]
    for step in range(1, steps + 1):
        row = {"split": "train", "step": step, "loss": -0.1, "success": 0.5, "left_out/no_signal": 2}
        judge = {"judge_score": step / steps, "judge/calls": 2, "judge/cost_usd": 0.25} if judged else {}
        rows += [row | judge, {"split": "times", "step": step, "whole": 2.0, "rollout": 1.0}]
        members = [member(score / 3, hand=1 - score / 3, judged=judged) for score in range(4)]
        group = TrajectoryGroup(members)
        if judged:
            group = group.model_copy(update={"judgement": GroupJudgement(status="scored")})
        TrajectoryStore(directory / "trajectories" / "train" / f"{step:06d}.jsonl.zst").append(group)
    if judged:
        rows.append({"split": "alarms", "step": 2, "alarm": "score_gap"})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "metrics.jsonl").write_text(text + '{"split": "train", "st')  # torn: the run goes on
    return directory


def damage_row(run: Path) -> None:
    """Makes the second row of the run's metrics unreadable."""
    first, second, rest = (run / "metrics.jsonl").read_text().split("\n", 2)
    (run / "metrics.jsonl").write_text(f"{first}\n{second[:-4]}\n{rest}")


def member(score: float, *, hand: float, judged: bool = True) -> Trajectory:
    trajectory = Trajectory(
        messages_and_choices=[{"role": "user", "content": HOSTILE}, choice(HOSTILE)],
        reward=score,
        metrics={"success": score > 0.5, "reward/hand": hand},
        metadata={"task": {"id": HOSTILE}},
    )
    if judged:
        trajectory.judgement = Judgement(score=score, explanation=HOSTILE, flags=["contentless"])
    return trajectory
