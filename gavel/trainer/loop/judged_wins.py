"""How often a policy's attempts beat those of earlier steps at the same held-out tasks, by the judge.

    await judge_wins(judge, attempts, {"base": attempts of step 0, "best": attempts of the best step so far})
    attempts[0].metrics["wins/base"]        # 1.0, or 0.5 for a tie, or 0.0

It is the learning curve of a scenario without `success`. An attempt and its rivals are judged as one group, so the
orders of the judge balance who is shown first. What the judge leaves unscored has no such metric.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gavel.base.errors import first_error
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

BASE, BEST = "base", "best"
WINS = "wins/"
"""Before the name of the rival."""


async def judge_wins(
    judge: Judge, attempts: Sequence[Trajectory], rivals: Mapping[str, Sequence[Trajectory]], most: int
) -> None:
    """Adds the metrics `wins/<rival>` to the first `most` attempts whose task a rival has tried too.

    Raises `JudgeError` for a judge that cannot be asked, or has stopped.
    """
    tried = {name: {_task(rival): rival for rival in theirs} for name, theirs in rivals.items()}
    comparable = [each for each in attempts if any(_task(each) in theirs for theirs in tried.values())]

    async def compare(attempt: Trajectory) -> None:
        names = [name for name, theirs in tried.items() if _task(attempt) in theirs]
        members = [attempt, *(tried[name][_task(attempt)] for name in names)]
        group = TrajectoryGroup([_bare(member) for member in members])
        judged = await judge.score(group)
        if judged.judgement is not None and judged.judgement.status == "degenerate":  # they did the same
            attempt.metrics |= {f"{WINS}{name}": 0.5 for name in names}
            return
        own, *others = (member.judgement.score if member.judgement else None for member in judged)
        for name, other in zip(names, others, strict=True):
            if own is not None and other is not None:
                attempt.metrics[f"{WINS}{name}"] = 0.5 if own == other else float(own > other)

    with first_error():
        async with asyncio.TaskGroup() as tasks:
            for attempt in comparable[:most]:
                tasks.create_task(compare(attempt))


def best_step(rows: Sequence[Mapping[str, Any]], prefix: str = "") -> int | None:
    """The step that beat the base most often, the newest among equals; None before there is one.

    `prefix`: of the metrics of one scenario among several.
    """
    metric = f"{prefix}{WINS}{BASE}"
    known = [(row[metric], row["step"]) for row in rows if row.get(metric) is not None]
    return max(known)[1] if known else None


def _task(trajectory: Trajectory) -> tuple[str, str | None]:
    """The task and who acted."""
    task = trajectory.metadata.get("task")
    named = cast("dict[str, Any]", task) if isinstance(task, dict) else {}
    return str(named.get("id")), trajectory.agent


def _bare(trajectory: Trajectory) -> Trajectory:
    """Without what an earlier judge said."""
    return trajectory.model_copy(update={"reward": None, "judgement": None})
