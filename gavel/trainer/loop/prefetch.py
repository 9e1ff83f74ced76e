"""Groups are made ahead of the training that uses them, and none is trained when its policy is too old for it.

A step takes the groups that are ready, those planned first before others, so a slow one holds up nobody. At most
`(max_staleness + 1) * per_step` groups are under way, which bounds memory and leaves training enough to wait for. One
that is overtaken until its policy is more than `max_staleness` steps old is given up, and another begun for it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.watchdog import Watchdog, end

Make = Callable[[int, Callable[[], None]], Coroutine[Any, Any, TrajectoryGroup]]
"""Rolls out and judges the group at a place of the plan; calls what it is given whenever a rollout begins."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on."""

    groups: list[TrajectoryGroup]
    stale: int
    """Groups given up since the batch before."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A group under way, or ready."""

    task: "asyncio.Task[TrajectoryGroup]"
    version: int | None = None
    """Step of the policy that its first rollout began with; the others began no earlier."""


class Ahead:
    """Makes the groups of the steps from `first` up to `last`; an async context manager that ends what is under way.

    The place of a group in the plan, from `first * per_step` on, is all that decides what it is asked.
    """

    def __init__(
        self, make: Make, *, first: int, last: int, per_step: int, max_staleness: int, watchdog: Watchdog
    ) -> None:
        self._make = make
        self._step = self._first = first
        self._steps = last - first
        self._per_step = per_step
        self._max_staleness = max_staleness
        self._watchdog = watchdog
        self._flights: list[_Flight] = []
        """In the order of the plan."""
        self._given_up: set[asyncio.Task[TrajectoryGroup]] = set()
        """Until they have ended."""
        self._begun = 0
        self._stale = 0
        self._told = 0
        """Stale groups that were counted in a batch."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await end([*(flight.task for flight in self._flights), *self._given_up])

    def advance(self, step: int) -> None:
        """The policy of `step` is live: gives up what is too old for it, and begins what may be begun."""
        self._step = step
        for flight in self._flights.copy():
            if flight.version is not None and step - flight.version > self._max_staleness:
                self._give_up(flight)
        allowed = min(step - self._first + self._max_staleness + 1, self._steps) * self._per_step
        while self._begun - self._stale < allowed:
            self._begin(self._first * self._per_step + self._begun)
            self._begun += 1

    async def batch(self) -> Batch:
        """The groups of one step, as soon as there are enough. Raises what making a group raises, at once."""
        while True:
            ready = [flight for flight in self._flights if flight.task.done()]
            groups = [flight.task.result() for flight in ready]
            if len(ready) >= self._per_step:
                break
            with self._watchdog.during(
                "training", f"waiting for {self._per_step - len(ready)} more groups", counted=False
            ):
                under_way = [flight.task for flight in self._flights if not flight.task.done()]
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for flight in ready[: self._per_step]:
            self._flights.remove(flight)
        stale, self._told = self._stale - self._told, self._stale
        return Batch(groups[: self._per_step], stale)

    def _begin(self, place: int) -> None:
        def rollout_begins() -> None:
            if flight.version is None:
                flight.version = self._step

        flight = _Flight(asyncio.ensure_future(self._make(place, rollout_begins)))
        self._flights.append(flight)

    def _give_up(self, flight: _Flight) -> None:
        self._flights.remove(flight)
        self._stale += 1
        flight.task.cancel()
        self._given_up.add(flight.task)
        flight.task.add_done_callback(self._given_up.discard)


def staleness(groups: Iterable[TrajectoryGroup], step: int) -> dict[str, float]:
    """`staleness/mean` and `staleness/max` in steps, over trajectories: how much older than `step` their policies are.

    A trajectory is as old as its oldest turn; nothing is told where no turn tells its policy.
    """
    oldest = [version for group in groups for trajectory in group if (version := _oldest(trajectory)) is not None]
    if not oldest:
        return {}
    return {"staleness/mean": step - fmean(oldest), "staleness/max": float(step - min(oldest))}


def _oldest(trajectory: Trajectory) -> int | None:
    versions = [(choice.model_extra or {}).get("policy_version") for choice in trajectory.choices()]
    return min((version for version in versions if version is not None), default=None)
