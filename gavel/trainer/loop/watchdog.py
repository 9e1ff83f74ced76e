"""Ends a run in which nothing happens any more, saying what each of its stages is at.

Whatever begins or ends in a stage is progress. A run without any for `stall_seconds` is cancelled and raises.
"""

import asyncio
import time
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gavel.errors import GavelError

T = TypeVar("T")

Stage = Literal["rollout", "judging", "training"]
_STAGES: tuple[Stage, ...] = ("rollout", "judging", "training")
_TOLD = 3
"""Kinds of work that are named of each stage, those that go on for longest."""
_GRACE = 10.0


class LoopError(GavelError):
    """A training loop cannot go on."""


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    stage: Stage
    what: str
    counted: bool
    since: float


class Watchdog:
    """Knows what every stage is at, and when something last happened."""

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._last = time.monotonic()
        self._going_on: dict[_Work, None] = {}

    @contextmanager
    def during(self, stage: Stage, what: str, *, counted: bool = True) -> Iterator[None]:
        """Held while `stage` is at `what`: a kind of work, told with the number of those under way, or a sentence."""
        self._last = time.monotonic()
        work = _Work(stage, what, counted, self._last)
        self._going_on[work] = None
        try:
            yield
        finally:
            del self._going_on[work]
            self._last = time.monotonic()

    async def guard(self, run: Coroutine[Any, Any, T]) -> T:
        """What `run` gives. Raises `LoopError` when there was no progress for `stall_seconds`; `run` is cancelled."""
        self._last = time.monotonic()
        running = asyncio.ensure_future(run)
        try:
            while (left := self._last + self._stall_seconds - time.monotonic()) > 0:
                if (await asyncio.wait({running}, timeout=left))[0]:
                    return running.result()
            raise LoopError(
                f"nothing has happened for {self._stall_seconds:g} s; {self.state()}",
                "Mend what it waits for, and run the same command again: it goes on from the last finished step. "
                "Where nothing is wrong, raise stall_seconds.",
            )
        finally:
            await end({running})

    def state(self) -> str:
        """What each stage is at, and for how long."""
        return "; ".join(f"{stage}: {self._at(stage)}" for stage in _STAGES)

    def _at(self, stage: Stage) -> str:
        kinds: dict[tuple[str, bool], list[_Work]] = {}
        for work in self._going_on:  # in the order in which it began
            if work.stage == stage:
                kinds.setdefault((work.what, work.counted), []).append(work)
        now = time.monotonic()
        told = [
            f"{f'{len(works)} ' if counted else ''}{what} for {now - works[0].since:.0f} s"
            for (what, counted), works in kinds.items()
        ]
        if len(told) > _TOLD:
            told[_TOLD:] = [f"and of {len(told) - _TOLD} more"]
        return ", ".join(told) or "nothing"


async def end(tasks: "Collection[asyncio.Future[Any]]") -> None:
    """Cancels `tasks` and waits for them; what has not ended after 10 s is left behind."""
    for task in tasks:
        task.cancel()
    if tasks:
        for task in (await asyncio.wait(tasks, timeout=_GRACE))[0]:
            if not task.cancelled():
                task.exception()  # whoever needs it has it already; asyncio would complain that nobody asked
