"""A judge's scores of held-out attempts. Each has a task of its own, and is judged by itself."""

import asyncio
import math
from collections.abc import Sequence
from statistics import fmean, stdev

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.llm.errors import first_error
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory

_Z95 = 1.959964


async def judge_alone(judge: Judge, attempts: Sequence[Trajectory]) -> list[Judgement]:
    """A judgement of each attempt; one without a score for those that a judge which stopped was not asked about.

    `judge` is one that scores a lone attempt (`alone="scored"`). Raises `JudgeError` for a judge that cannot be asked.
    """
    judgements: dict[int, Judgement] = {}

    async def score(index: int, attempt: Trajectory) -> None:
        try:
            (judged,) = (await judge.score(TrajectoryGroup([attempt]))).trajectories
        except JudgeError:
            if judge.stopped is None:
                raise
            return
        if judged.judgement is not None:
            judgements[index] = judged.judgement

    with first_error():
        async with asyncio.TaskGroup() as tasks:
            for index, attempt in enumerate(attempts):
                tasks.create_task(score(index, attempt))
    reason = judge.stopped.message if judge.stopped else "not judged"
    return [judgements.get(index) or Judgement(reason=reason) for index in range(len(attempts))]


def mean_score(judgements: Sequence[Judgement]) -> tuple[str, str]:
    """The mean with the half width of its 95 % interval, and what is missing: `0.713 ± 0.021`, `2 unscored: …`."""
    scores = [judgement.score for judgement in judgements if judgement.score is not None]
    missing = [judgement.reason or "not judged" for judgement in judgements if judgement.score is None]
    note = f"{len(missing):,} unscored: {missing[0]}" if missing else ""
    if not scores:
        return "–", note
    width = f" ± {_Z95 * stdev(scores) / math.sqrt(len(scores)):.3f}" if len(scores) > 1 else ""
    return f"{fmean(scores):.3f}{width}", note
