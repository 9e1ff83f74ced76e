"""The outcome of a finished run: success before and after, judge against truth, what was left out, and time.

Reads the run directory alone, so that a run that was interrupted and resumed has the same outcome as one that was not.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.loop.evaluation import interval
from gavel.trainer.loop.train_loop import EVALUATION, TIMES

Row = dict[str, Any]

_ROW_KEYS = ("step", "split", "time")
"""Keys that identify a metrics row; the others are its figures."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the learning curve on held-out tasks."""

    step: int
    success: float
    tasks: int
    measures: dict[str, float]

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of `success`."""
        return interval(self.success, self.tasks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run."""

    curve: list[Point]
    rewards: list[tuple[int, float]]
    """(step, mean judge score of its rollouts)."""
    scored: list[tuple[float, bool]]
    """(judge score, true success) of every scored training rollout."""
    tau: float | None
    """Mean within-group Kendall tau-b of judge score and true success; None where no group has both outcomes."""
    statuses: Counter[str]
    """Number of groups by status of their judgement."""
    left_out: Counter[str]
    """Number of groups and members not trained on, by the key of `LeftOut`."""
    trained_steps: int
    """Steps that changed the adapter."""
    seconds: dict[str, float]
    """Time by phase: rollout, judge, train."""
    before: Trajectory
    after: Trajectory
    """The same held-out task after training as in `before`: one that went from failure to success, if there is one, and
    in which the habit that training was to remove is seen before and not after."""

    @property
    def base(self) -> Point:
        return self.curve[0]

    @property
    def trained(self) -> Point:
        return self.curve[-1]


def read_outcome(directory: Path, history: list[Row], habit: str | None = None) -> Outcome:
    """The outcome of the run in `directory`; `history` are its metrics rows. `habit`: the measure that is low where the
    base's bad habit shows."""
    evaluations = [row for row in history if row["split"] == EVALUATION]
    curve = [_point(row) for row in evaluations]
    training = [row for row in history if row["split"] == "train"]
    groups = list(_groups(directory / "trajectories" / "train"))
    left_out: Counter[str] = Counter()
    for row in training:
        left_out.update({k.removeprefix("left_out/"): int(v) for k, v in row.items() if k.startswith("left_out/")})
    before, after = _pair(held_out(directory, curve[0].step), held_out(directory, curve[-1].step), habit)
    return Outcome(
        curve=curve,
        rewards=[(row["step"], row["reward"]) for row in training if row.get("reward") is not None],
        scored=[pair for group in groups for pair in group.scored],
        tau=mean_kendall_tau([[(score, float(ok)) for score, ok in group.scored] for group in groups]),
        statuses=Counter(group.status for group in groups),
        left_out=left_out,
        trained_steps=sum(bool(row["groups_trained"]) for row in training),
        seconds=_seconds(history),
        before=before,
        after=after,
    )


async def judged_pair(outcome: Outcome, judge: Judge) -> tuple[Trajectory, Trajectory]:
    """`before` and `after`, judged as one group of two, with the judge's explanations."""
    pair = await judge.score(TrajectoryGroup([outcome.before, outcome.after]))
    return pair.trajectories[0], pair.trajectories[1]


@dataclass(frozen=True, slots=True)
class _GroupScores:
    status: str
    scored: list[tuple[float, bool]]


def _groups(directory: Path) -> Iterator[_GroupScores]:
    for file in sorted(directory.glob("*.jsonl.zst")):
        for group in TrajectoryStore(file).rows():
            status = group["judgement"]["status"] if group["judgement"] else "unscored"
            members: list[Row] = group["trajectories"]
            scored = [(t["reward"], bool(t["metrics"]["success"])) for t in members if t["reward"] is not None]
            yield _GroupScores(status, scored)


def held_out(directory: Path, step: int) -> dict[str, Row]:
    """The trajectories of an evaluation by task id."""
    store = TrajectoryStore(directory / "trajectories" / EVALUATION / f"{step:06d}.jsonl.zst")
    return {str(t["metadata"]["task"]["id"]): t for group in store.rows() for t in group["trajectories"]}


def _pair(before: dict[str, Row], after: dict[str, Row], habit: str | None) -> tuple[Trajectory, Trajectory]:
    def gained(task: str, name: str) -> bool:
        old, new = (float(each[task]["metrics"].get(name, 0)) for each in (before, after))
        return new > old

    both = [task for task in before if task in after]
    improved = [task for task in both if gained(task, "success")]
    shows_habit = [task for task in improved if habit is not None and gained(task, habit)]
    task = (shows_habit or improved or both)[0]
    return Trajectory.model_validate(before[task]), Trajectory.model_validate(after[task])


def _point(row: Row) -> Point:
    measures: dict[str, float] = {
        name: value for name, value in row.items() if name not in _ROW_KEYS and isinstance(value, int | float)
    }
    return Point(row["step"], row["success"], int(row["trajectories"]), measures)


def _seconds(history: list[Row]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for row in history:
        if row["split"] == TIMES:
            total.update({name: value for name, value in row.items() if name not in _ROW_KEYS})
    return {"rollout": total["rollout"] + total["evaluation"], "judge": total["judge"], "train": total["train"]}
