"""Ends a run that makes no progress, with an error that says what each stage is doing.

Anything that starts or ends in a stage is progress. A run without any for `stall_seconds` is cancelled and raises.

A schedule of turn limits: short episodes first, longer ones later (ScalingInter-RL, arXiv 2509.08755).

    {0: 10, 20: 20, 40: 30}     10 turns at step 19; before the first limit the scenario's own

The limit of a rollout depends on its step alone, so a run that goes on has the same. Held-out episodes always have the
largest limit, so the points of a learning curve can be compared.
"""

import asyncio
import time
from collections.abc import Collection, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from gavel.base.errors import GavelError
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import LoopConfig
from gavel.trainer.engines.protocol import deadline

T = TypeVar("T")

Stage = Literal["rollout", "judging", "training", "evaluation"]
_NAMED_KINDS = 3
"""Kinds of work named per stage in the error, the longest-running ones."""
_GRACE = 10.0
_STALL = 1800.0
_DEFAULT_TURN = 1024
"""Tokens."""


class LoopError(GavelError):
    """A training loop cannot go on."""


def stall_seconds(config: LoopConfig) -> float:
    """The limit of a run: while all rollouts think at once, nothing starts or ends for as long as a turn takes."""
    if config.stall_seconds is not None:
        return config.stall_seconds
    return max(_STALL, deadline(config.max_tokens or _DEFAULT_TURN))


class Watchdog:
    """Tracks what every stage is doing, the time of the last progress, and how long each stage was busy."""

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._last = time.monotonic()
        self._running: dict[Stage, dict[tuple[str, bool], list[float]]] = {stage: {} for stage in get_args(Stage)}
        """The times since when each kind of work is done, in the order in which the kinds began."""
        self._busy: dict[Stage, float] = dict.fromkeys(self._running, 0.0)
        """Seconds of each stage's finished busy times since its last lap."""
        self._since: dict[Stage, float] = {}

    @contextmanager
    def during(self, stage: Stage, what: str, *, counted: bool = True) -> Generator[None, None, None]:
        """Marks that `stage` is doing `what`: a kind of work, reported with how many are running, or a sentence."""
        since = self._last = time.monotonic()
        kinds = self._running[stage]
        if not kinds:
            self._since[stage] = since
        works = kinds.setdefault((what, counted), [])
        works.append(since)
        try:
            yield
        finally:
            works.remove(since)
            self._last = time.monotonic()
            if not works:
                del kinds[what, counted]
            if not kinds:
                self._busy[stage] += self._last - self._since[stage]

    def lap(self, stage: Stage) -> float:
        """The seconds since the last lap in which at least one work of the stage was running."""
        now = time.monotonic()
        seconds = self._busy[stage] + (now - self._since[stage] if self._running[stage] else 0.0)
        self._busy[stage], self._since[stage] = 0.0, now
        return seconds

    async def guard(self, run: Coroutine[Any, Any, T]) -> T:
        """The result of `run`. Raises `LoopError`, and cancels `run`, after `stall_seconds` without progress."""
        self._last = time.monotonic()
        running = asyncio.ensure_future(run)
        try:
            while (left := self._last + self._stall_seconds - time.monotonic()) > 0:
                if (await asyncio.wait({running}, timeout=left))[0]:
                    return running.result()
            raise LoopError(
                f"nothing has happened for {self._stall_seconds:g} s; {self.state()}",
                "Mend what it waits for, and run the same command again: it goes on from the last finished step. "
                "Where nothing is wrong, raise stall_seconds (--stall-seconds).",
            )
        finally:
            await end({running})

    def state(self) -> str:
        """A description of what each stage is doing, and for how long."""
        return "; ".join(f"{stage}: {self._at(stage)}" for stage in self._running)

    def _at(self, stage: Stage) -> str:
        now = time.monotonic()
        told = [
            f"{f'{len(works)} ' if counted else ''}{what} for {now - works[0]:.0f} s"
            for (what, counted), works in self._running[stage].items()
        ]
        if len(told) > _NAMED_KINDS:
            told[_NAMED_KINDS:] = [f"and of {len(told) - _NAMED_KINDS} more"]
        return ", ".join(told) or "nothing"


async def end(tasks: "Collection[asyncio.Future[Any]]") -> None:
    """Cancels `tasks` and waits for them; what has not ended after 10 s is left behind."""
    for task in tasks:
        task.cancel()
    if tasks:
        for task in (await asyncio.wait(tasks, timeout=_GRACE))[0]:
            if not task.cancelled():
                task.exception()  # whoever needs it has it already; asyncio would complain that nobody asked


RESUME = "Mend it, and run the same command again: it resumes after the last finished step."
_MEND = (
    "Mend what is outside the scenario, and the same command resumes after the last finished step. A run of a changed "
    "scenario begins anew: --fresh, or another --name."
)


def stop_at_outage(judge: Judge | None, groups: list[TrajectoryGroup]) -> None:
    """Raises `LoopError` at an outage (all rollouts failed, nothing was scored, or the judge has stopped for good,
    as with a spent budget): training would hide it."""
    trajectories = [trajectory for group in groups for trajectory in group]
    errors = [error.message for group in groups for error in group.exceptions]
    if all(trajectory.status == "failed" for trajectory in trajectories):
        reasons = [trajectory.status_reason for trajectory in trajectories] + errors
        raise LoopError(f"every rollout of this step failed; the first: {reasons[0]}", _MEND)
    if judge is None:
        if all(trajectory.reward is None for trajectory in trajectories):
            raise LoopError(f"no member of this step has a reward; the first error: {errors[0]}", _MEND)
        return
    if (stopped := judge.stopped) is not None:
        raise LoopError(stopped.message, f"{stopped.remedy} {RESUME}")
    unjudged = [group for group in groups if group.judgement is None or group.judgement.status == "unscored"]
    if len(unjudged) == len(groups):
        first = unjudged[0]
        reason = first.judgement.reason if first.judgement else first.exceptions[-1].message
        raise LoopError(f"the judge scored no group of this step; the first: {reason}", RESUME)


def with_turn_limit(scenario: Scenario, limits: Mapping[int, int], step: int) -> Scenario:
    """The scenario with the turns of a rollout for training at `step`; its own before the first limit."""
    begun = [first for first in limits if first <= step]
    return scenario.with_max_turns(limits[max(begun)]) if begun else scenario


def held_out_scenario(scenario: Scenario, limits: Mapping[int, int]) -> Scenario:
    """The scenario with the turns of a held-out episode."""
    most = max(limits.values(), default=0)
    return scenario.with_max_turns(most) if most > scenario.max_turns else scenario


def check_turn_limits(scenario: Scenario, limits: Mapping[int, int]) -> None:
    """Raises `LoopError` for a scenario whose rollouts count their turns themselves."""
    if limits and scenario.rollout is not None:
        raise LoopError(
            f"turn_limits are for the built-in agent loop; {scenario.name} has a rollout of its own, which they miss",
            "Leave turn_limits (--turn-limits) out, and count the turns within the rollout.",
        )
