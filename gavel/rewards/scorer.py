"""Scores groups for a reward hook, with whatever its user named as the judge.

    Scorer("openai/gpt-5-mini", rubric="…")     a model, or several: a `gavel.Judge` in this process
    Scorer("http://127.0.0.1:8080")             a judge service, asked by a `gavel.JudgeClient`
    Scorer(gavel.Judge(…, orders=4))            a judge with its own settings; a JudgeConfig, a JudgeClient
    Scorer()                                    GAVEL_JUDGE_URL's service, else GAVEL_JUDGE_MODEL

Trainers send their hooks to other processes: a scorer can be pickled, unless it was made of a `Judge`. Keys of services
and models stay behind: they come from the environment of the other process.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, cast

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Models
from gavel.judge.rubric import Rubric
from gavel.judge.service.client import URL_VARIABLE, JudgeClient
from gavel.rewards.background_loop import run, submitted
from gavel.scenarios.group import TrajectoryGroup

JudgeLike = Judge | JudgeClient | JudgeConfig | Models
"""A judge, a client of a service, a judge's settings, a service's address, or judge models."""


class Scorer:
    """Asks one judge on the background loop, from any thread and any event loop."""

    def __init__(self, judge: JudgeLike | None = None, rubric: Rubric | str | None = None) -> None:
        """`rubric`: for a judge that is named by its models or its address; others have their own.

        Raises `JudgeError` when no judge is named, or one with settings is given a rubric besides.
        """
        self._given = (judge, rubric)
        self._judge = _judge(judge, rubric)

    async def score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """The judged group. Raises `JudgeError` as `Judge.score` and `JudgeClient.score` do."""
        return await submitted(self._score(group))

    async def score_all(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The judged groups in the order given, judged concurrently. The first error ends the others."""
        return await submitted(self._score_all(groups))

    def score_all_now(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The same for a hook that is no coroutine; it may be called in a thread with a running event loop."""
        return run(self._score_all(groups))

    async def _score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """The judged group. Raises what stopped the judge (a budget that is used up) where it left members unscored."""
        judged = await self._judge.score(group)
        failed = judged.judgement is not None and judged.judgement.status in ("partial", "unscored")
        if failed and isinstance(self._judge, Judge) and (stopped := self._judge.stopped) is not None:
            raise stopped
        return judged

    async def _score_all(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        try:
            async with asyncio.TaskGroup() as tasks:
                scored = [tasks.create_task(self._score(group)) for group in groups]
        except ExceptionGroup as errors:
            raise _first(errors) from errors
        return [task.result() for task in scored]

    def __getstate__(self) -> tuple[Any, ...]:
        judge, rubric = self._given
        if isinstance(judge, Judge):
            raise JudgeError(
                "this trainer sends its reward to another process, and a Judge cannot go there.",
                "Give a model's name, gavel.JudgeConfig(…) or the address of a judge service instead.",
            )
        return (self._judge, None) if isinstance(self._judge, JudgeClient) else (judge, rubric)

    def __setstate__(self, given: tuple[Any, ...]) -> None:
        self.__init__(*given)

    def __deepcopy__(self, _: dict[int, Any]) -> "Scorer":
        return self  # never changed, and its judge may be shared


def _judge(judge: JudgeLike | None, rubric: Rubric | str | None) -> Judge | JudgeClient:
    if isinstance(judge, Judge | JudgeClient | JudgeConfig):
        if rubric is not None:
            raise JudgeError(
                f"a {type(judge).__name__} has its own rubric.", "Give it the rubric, or name its models here instead."
            )
        return judge.build() if isinstance(judge, JudgeConfig) else judge
    if judge is None and os.environ.get(URL_VARIABLE):
        judge = os.environ[URL_VARIABLE]
    if isinstance(judge, str) and judge.startswith(("http://", "https://")):
        if isinstance(rubric, Rubric):
            raise JudgeError("a service takes a rubric as text.", "Write it as one, or name a preset of the service.")
        return JudgeClient(judge, options=None if rubric is None else {"rubric": rubric})
    return Judge(judge, rubric=rubric)


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    one = errors.exceptions[0]
    return _first(cast(ExceptionGroup[Exception], one)) if isinstance(one, ExceptionGroup) else one
