"""Prefetches groups for training; no group is trained whose policy is more than `max_staleness` steps old.

    max_staleness = 1, the policy of step 7 is live:
    a group whose first rollout began at step 6 may be trained
    one that began at step 5 is cancelled, and made anew

A step takes the first groups of the plan that are ready, so one slow group does not delay the step. At most
`(max_staleness + 1) * per_step` groups are in flight, which bounds memory. With `max_staleness` 0 these are exactly the
groups of the step to train. A group that becomes too old is cancelled, counted and replaced by the next of the plan.
A group without a signal is replaced by a further one while its step may have one more (DAPO's dynamic sampling, arXiv
2503.14476): how many these are does not depend on which group is ready first.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self

from gavel.scenarios.gather import GroupTally
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.watchdog import Watchdog, end


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


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The groups that one step trains on, and those that others replaced."""

    groups: list[TrajectoryGroup]
    """In the order in which they were started."""
    stale: int
    """Groups that were cancelled since the batch before, for being too old."""
    refills: int = 0
    """Further groups that were made in place of some without a signal."""
    unfilled: int = 0
    """Groups without a signal that no further one replaced: the bound was reached."""


@dataclass(slots=True, eq=False)
class GroupSlot:
    """A place in the plan, whose group is being made or is ready."""

    position: int
    """Position in the plan; it alone decides the group's task and seeds."""
    refill: int | None
    """Number of a further group among those of its step, whose first position is `position`; None: of the plan."""
    live_step: Callable[[], int]
    tally: GroupTally = field(default_factory=GroupTally)
    """Counts for the progress display, written by what makes the group."""
    version: int | None = None
    """Training step of the policy that its first rollout started with; None before."""
    task: "asyncio.Task[list[TrajectoryGroup]]" = field(init=False)

    def rollout_starts(self) -> None:
        """To be called whenever a rollout starts: a group is as old as the policy of its first rollout."""
        if self.version is None:
            self.version = self.live_step()


@dataclass(slots=True)
class RolloutPrefetcher:
    """Makes the groups of the steps from `first` up to `last`; an async context manager that cancels what is left.

    Positions in the plan start at `first * per_step`, so a resumed run continues the same plan.
    """

    make: Callable[[GroupSlot], Coroutine[Any, Any, list[TrajectoryGroup]]]
    """Rolls out and scores the group at a place in the plan; of several agents, one for each."""
    first: int
    last: int
    per_step: int
    max_staleness: int
    watchdog: Watchdog
    refills: int = 0
    """Further groups that a step may have in place of those that `has_signal` denies."""
    has_signal: Callable[[TrajectoryGroup], bool] = lambda group: True
    _step: int = field(init=False)
    _in_flight: list[GroupSlot] = field(default_factory=list[GroupSlot], init=False)
    """In the order in which they were started."""
    _cancelled: "set[asyncio.Task[Any]]" = field(default_factory=set["asyncio.Task[Any]"], init=False)
    """Stale groups whose tasks have not ended yet."""
    _started: int = 0
    """Groups of the plan."""
    _stale: int = 0
    _reported_stale: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await end([*(slot.task for slot in self._in_flight), *self._cancelled])

    @property
    def tallies(self) -> list[GroupTally]:
        """The tallies of the groups that are being made or are ready."""
        return [slot.tally for slot in self._in_flight]

    def advance(self, step: int) -> None:
        """Tells that the policy of `step` is live: cancels the groups that are too old for it, and starts new ones."""
        self._step = step
        for slot in self._in_flight.copy():
            if slot.version is not None and step - slot.version > self.max_staleness:
                self._in_flight.remove(slot)
                self._stale += 1
                slot.task.cancel()
                self._cancelled.add(slot.task)
                slot.task.add_done_callback(self._cancelled.discard)
        steps = min(step + self.max_staleness + 1, self.last) - self.first
        while self._started - self._stale < steps * self.per_step:
            self._start(self.first * self.per_step + self._started)
            self._started += 1

    async def batch(self) -> StepBatch:
        """The groups of one step, as soon as enough are ready. Raises at once what making a group raises."""
        without: list[GroupSlot] = []
        refills = 0
        while True:
            ready: list[GroupSlot] = []
            for slot in [slot for slot in self._in_flight if slot.task.done() and slot not in without]:
                if len(ready) + len(without) == self.per_step + refills:
                    break
                made = slot.task.result()  # raises what making it raised
                if not self.refills or any(map(self.has_signal, made)):
                    ready.append(slot)
                    continue
                without.append(slot)
                if refills < self.refills:
                    self._start(self._step * self.per_step, refills)
                    refills += 1
            missing = self.per_step + refills - len(ready) - len(without)
            if not missing:
                break
            doing = f"waiting for {missing} more group{'s' * (missing > 1)}"
            with self.watchdog.during("training", doing, counted=False):
                running = [slot.task for slot in self._in_flight if not slot.task.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        taken = [slot for slot in self._in_flight if slot in ready or slot in without]
        self._in_flight = [slot for slot in self._in_flight if slot not in taken]
        stale, self._reported_stale = self._stale - self._reported_stale, self._stale
        groups = [group for slot in taken for group in slot.task.result()]
        return StepBatch(groups, stale, refills, len(without) - refills)

    def _start(self, position: int, refill: int | None = None) -> None:
        slot = GroupSlot(position, refill, lambda: self._step)
        slot.task = asyncio.ensure_future(self.make(slot))
        self._in_flight.append(slot)
