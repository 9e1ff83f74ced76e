"""Prefetches groups for training; no group is trained whose policy is more than `max_staleness` steps old.

A step takes the first groups of the plan that are ready, so one slow group does not delay the step. At most
`(max_staleness + 1) * per_step` groups are in flight, which bounds memory. With `max_staleness` 0 these are exactly the
groups of the step to train. A group that becomes too old is cancelled, counted and replaced by the next of the plan.
A group without a signal is replaced by a further one while its step may have one more (DAPO's dynamic sampling, arXiv
2503.14476): how many these are does not depend on which group is ready first.

Staleness: by how many steps the policy that sampled a group is older than the policy that learns from it.

    max_staleness = 1, the policy of step 7 is live:
    a group whose first rollout began at step 6 may be trained        is_too_old(6, step=7, max_staleness=1) is False
    one that began at step 5 is cancelled, and made anew              is_too_old(5, step=7, max_staleness=1) is True

With `max_staleness` 0 every group is sampled by the policy that learns from it. `prefetch.py` holds these bounds.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Generic, Self, TypeVar

from gavel.scenarios.gather import GroupTally
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.watchdog import Watchdog, end


def is_too_old(version: int | None, step: int, max_staleness: int) -> bool:
    """Whether a group may not be trained at `step`. `version`: the step of its first rollout; None = none began."""
    return version is not None and step - version > max_staleness


def steps_ahead(step: int, steps: int, max_staleness: int) -> int:
    """The number of steps, counted from the run's first, whose groups may be started at `step`."""
    return min(step + max_staleness + 1, steps)


def staleness(groups: Iterable[TrajectoryGroup], step: int) -> dict[str, float]:
    """`staleness/mean` and `staleness/max` over trajectories: how many steps their policies are older than `step`.

    A trajectory is as old as its oldest turn. Empty when no turn carries its policy version.
    """
    oldest = [version for group in groups for trajectory in group if (version := _oldest(trajectory)) is not None]
    if not oldest:
        return {}
    return {"staleness/mean": step - fmean(oldest), "staleness/max": float(step - min(oldest))}


def _oldest(trajectory: Trajectory) -> int | None:
    versions = [(choice.model_extra or {}).get("policy_version") for choice in trajectory.choices()]
    return min((version for version in versions if version is not None), default=None)


Made = TypeVar("Made")
"""The product of a position of the plan: a group, or all groups of one task."""


@dataclass(frozen=True, slots=True)
class StepBatch(Generic[Made]):
    """The groups that one step trains on, and those that others replaced."""

    groups: list[Made]
    """The made groups, in the order in which they were started."""
    stale: int
    """Groups that were cancelled since the batch before, for being too old."""
    refills: int = 0
    """Further groups that were made in place of some without a signal."""
    unfilled: int = 0
    """Groups without a signal that no further one replaced: the bound was reached."""


@dataclass(frozen=True, slots=True)
class GroupSlot:
    """The argument of the coroutine that makes a group."""

    position: int
    """Position in the plan; it alone decides the group's task and seeds."""
    tally: GroupTally
    """Counts for the progress display, written by the coroutine."""
    rollout_starts: Callable[[], None]
    """To be called whenever a rollout starts: a group is as old as the policy of its first rollout."""
    refill: int | None = None
    """Number of a further group among those of its step, whose first position is `position`; None: of the plan."""


MakeGroup = Callable[[GroupSlot], Coroutine[Any, Any, Made]]
"""Rolls out and scores one group."""


@dataclass(slots=True, eq=False)
class _InFlight(Generic[Made]):
    """A group that is being made or is ready."""

    task: "asyncio.Task[Made]" = field(init=False)
    tally: GroupTally = field(default_factory=GroupTally)
    number: int = 0
    """Rank in the order in which groups are started."""
    version: int | None = None
    """Training step of the policy that its first rollout started with; None before."""


class RolloutPrefetcher(Generic[Made]):
    """Makes the groups of the steps from `first` up to `last`; an async context manager that cancels what is left.

    Positions in the plan start at `first * per_step`, so a resumed run continues the same plan.
    """

    def __init__(
        self,
        make: MakeGroup[Made],
        *,
        first: int,
        last: int,
        per_step: int,
        max_staleness: int,
        watchdog: Watchdog,
        refills: int = 0,
        has_signal: Callable[[Made], bool] = lambda group: True,
    ) -> None:
        """`refills`: further groups that a step may have in place of those that `has_signal` denies."""
        self._make = make
        self._step = self._first = first
        self._steps = last - first
        self._per_step = per_step
        self._max_staleness = max_staleness
        self._watchdog = watchdog
        self._refills = refills
        self._has_signal = has_signal
        self._in_flight: list[_InFlight[Made]] = []
        """Groups in flight, in the order of the plan."""
        self._cancelled: set[asyncio.Task[Made]] = set()
        """Stale groups whose tasks have not ended yet."""
        self._started = 0
        """Groups of the plan."""
        self._numbers = itertools.count()
        self._stale = 0
        self._reported_stale = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await end([*(group.task for group in self._in_flight), *self._cancelled])

    @property
    def tallies(self) -> list[GroupTally]:
        """The tallies of the groups that are being made or are ready."""
        return [group.tally for group in self._in_flight]

    def advance(self, step: int) -> None:
        """Tells that the policy of `step` is live: cancels the groups that are too old for it, and starts new ones."""
        self._step = step
        for group in self._in_flight.copy():
            if is_too_old(group.version, step, self._max_staleness):
                self._cancel(group)
        allowed = steps_ahead(step - self._first, self._steps, self._max_staleness) * self._per_step
        while self._started - self._stale < allowed:
            self._start(self._first * self._per_step + self._started)
            self._started += 1

    async def batch(self) -> StepBatch[Made]:
        """The groups of one step, as soon as enough are ready. Raises at once what making a group raises."""
        without: list[_InFlight[Made]] = []
        refills = 0
        while True:
            ready: list[_InFlight[Made]] = []
            for group in [group for group in self._in_flight if group.task.done()]:
                if len(ready) + len(without) - refills == self._per_step:
                    break
                made = group.task.result()  # raises what making it raised
                if not self._refills or self._has_signal(made):
                    ready.append(group)
                    continue
                without.append(group)
                self._in_flight.remove(group)
                if refills < self._refills:
                    self._start(self._step * self._per_step, refills)
                    refills += 1
            missing = self._per_step - len(ready) - len(without) + refills
            if not missing:
                break
            doing = f"waiting for {missing} more group{'s' * (missing > 1)}"
            with self._watchdog.during("training", doing, counted=False):
                running = [group.task for group in self._in_flight if not group.task.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for group in ready:
            self._in_flight.remove(group)
        stale, self._reported_stale = self._stale - self._reported_stale, self._stale
        taken = sorted([*ready, *without], key=lambda group: group.number)
        return StepBatch([group.task.result() for group in taken], stale, refills, len(without) - refills)

    def _start(self, position: int, refill: int | None = None) -> None:
        def rollout_starts() -> None:
            if group.version is None:
                group.version = self._step

        group = _InFlight[Made](number=next(self._numbers))
        group.task = asyncio.ensure_future(self._make(GroupSlot(position, group.tally, rollout_starts, refill)))
        self._in_flight.append(group)

    def _cancel(self, group: _InFlight[Made]) -> None:
        self._in_flight.remove(group)
        self._stale += 1
        group.task.cancel()
        self._cancelled.add(group.task)
        group.task.add_done_callback(self._cancelled.discard)
