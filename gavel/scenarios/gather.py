"""Runs many rollouts concurrently: bounded, results in input order, each failure isolated.

A group goes to `after_each` as soon as its own members are done, while others still run. A failure costs one member,
or one group's scores, until there are more than `max_exceptions` allows: then everything else is cancelled.
"""

import asyncio
import inspect
import logging
import math
import numbers
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gavel.base.errors import GavelError, contain_cancellation
from gavel.base.text import counted
from gavel.scenarios.deadline import LateError, in_time, name_of, unless_stuck
from gavel.scenarios.group import (
    GroupError,
    MemberRunner,
    TrajectoryGroup,
    discard,
    member_runner,
    run_member,
    unscored,
)
from gavel.scenarios.trajectory import RolloutError, Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType

_LOG = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class GroupTally:
    """Counts of one group so far."""

    members: int = 0
    certain: bool = False
    """Whether `members` is final; False while a coroutine may still add rollouts to its group."""
    done: int = 0
    failed: int = 0
    trajectories: list[Trajectory] = field(default_factory=list[Trajectory])
    """The finished members; once the group is done, its scored members."""


def completion_tokens(trajectory: Trajectory) -> int:
    """Sampled tokens of all turns: the number of ids from the endpoint, else of log-probs."""
    total = 0
    for choice in trajectory.choices():
        token_ids = (choice.model_extra or {}).get("token_ids")
        if token_ids is None and choice.logprobs is not None:
            token_ids = choice.logprobs.content
        total += len(token_ids or ())
    return total


def metric_means(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Mean of each metric over the trajectories that have it, in order of appearance; of a bool, the share of True.

    Numbers that are not finite are left out. `reward` comes first, over the scored trajectories; it is absent while
    none is scored.
    """
    sums: dict[str, tuple[float, int]] = {"reward": (0.0, 0)}
    for trajectory in trajectories:
        for name, value in (trajectory.metrics | {"reward": trajectory.reward}).items():
            if isinstance(value, numbers.Real) and math.isfinite(value):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = (total + float(value), count + 1)
    return {name: total / count for name, (total, count) in sums.items() if count}


@contextmanager
def gather_display(
    tallies: Sequence[GroupTally],
    description: str | None,
    *,
    shown: bool | None = None,
    tokens: bool = True,
    max_metrics: int | None = None,
) -> Generator[None, None, None]:
    """Shows `tallies` on stderr while the block runs: members, seconds, means of the reward and of the first
    `max_metrics` metrics, failures, completion tokens.

    `shown=None`: if stderr is a terminal. True: also if it is not (one line, at the end).
    """
    is_taken = getattr(sys.stderr, "rich_proxied_file", None) is not None  # by a live display, ours included
    if is_taken or not (sys.stderr.isatty() if shown is None else shown):
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    started = time.monotonic()

    def line() -> "RenderableType":
        done, members = sum(tally.done for tally in tallies), sum(tally.members for tally in tallies)
        shown_trajectories = [trajectory for tally in tallies for trajectory in list(tally.trajectories)]
        means = metric_means(shown_trajectories)
        metrics = [name for name in means if name != "reward"][:max_metrics]
        figures = [f"{name} {mean:,.2f}" for name, mean in means.items() if name in ("reward", *metrics)]
        if failed := sum(tally.failed for tally in tallies):
            figures.append(f"{failed:,} failed")
        if tokens and (total := sum(map(completion_tokens, shown_trajectories))):
            figures.append(f"{total:,} tokens")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(
            Text(description or "", no_wrap=True),
            ProgressBar(total=max(members, 1), completed=done, width=24),
            Text(f"{done:,}/{members:,}", no_wrap=True),
            Text(f"{time.monotonic() - started:,.0f} s", no_wrap=True),
            Text(" · ".join(figures)),
        )
        return grid

    with Live(
        get_renderable=line,
        console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty(),  # output during the display goes above the line, and to a file unchanged
    ):
        yield


T = TypeVar("T")
_Scored = TrajectoryGroup | list[TrajectoryGroup] | None
AfterEach = Callable[[TrajectoryGroup], Awaitable[_Scored] | _Scored]


class GatherError(GavelError):
    """More failures than `max_exceptions` allows. The first one is the cause (`__cause__`)."""


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]] | TrajectoryGroup,
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = True,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
    concurrency: int | None = None,
    rollout_seconds: float | None = None,
    progress: bool | None = None,
    finished: list[TrajectoryGroup] | None = None,
) -> list[TrajectoryGroup]:
    """Runs the rollouts of all groups at once; gives the groups in input order, members in input order.

    A group may be pending, complete, or a coroutine that returns one. `after_each(group)`, plain or async, gives the
    group to keep, a list of groups, or None to drop it. A failure is recorded in its group's `exceptions`: a member
    that raises; a coroutine that raises (an empty group); an `after_each` that raises (the group is unscored: no member
    has a reward, and one that a rollout had set is kept in `metrics["independent_reward"]`).

    `max_exceptions`: tolerated failures; a float up to 1 is a share of all rollouts. `concurrency`: rollouts running at
    a time, over all groups (None = all). Tasks that already run, and rollouts that a coroutine makes without awaiting a
    `TrajectoryGroup`, are beyond its reach; so are groups that a rollout runs within itself. A gather within a group
    counts toward both. `rollout_seconds`: a rollout that runs longer is cancelled and counts as one that raised
    `TimeoutError`, and so does an `after_each` (None = no limit). Code that swallows its cancellation is left to itself
    a few seconds later. `progress`: None = a line on stderr if that is a free terminal. `max_metrics`: how many metric
    means it shows.

    `finished`: a list of the caller's that receives the result; if the gather is cancelled (`asyncio.wait_for`, Ctrl-C)
    or has more failures than `max_exceptions`, it receives the part that had finished. A group that `after_each` had
    not returned is unscored; one without a finished rollout is omitted.

        finished: list[gavel.TrajectoryGroup] = []
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gavel.gather_trajectory_groups(groups, finished=finished), 600)

    Raises `GatherError` from the first failure when there are more than `max_exceptions`.
    """
    sources: list[Awaitable[TrajectoryGroup]] = []
    try:
        sources.extend([groups] if isinstance(groups, TrajectoryGroup) else groups)
        for each in sources:
            if not inspect.isawaitable(each):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise GroupError(
                    f"groups are gathered, or coroutines that return one, not a {type(each).__name__}",
                    "Give gavel.TrajectoryGroup(rollout(model, task) for _ in range(4)) for each task.",
                )
        tallies = [GroupTally() for _ in sources]
        gathering = _Gathering(sources, tallies, after_each, max_exceptions, concurrency, rollout_seconds)
        with gather_display(
            tallies, pbar_desc, shown=progress, tokens=pbar_total_completion_tokens, max_metrics=max_metrics
        ):
            try:
                return await gathering.run()
            finally:
                if finished is not None:
                    finished += gathering.finished()
    finally:
        for source in sources:
            source.discard_pending() if isinstance(source, TrajectoryGroup) else discard(source)


async def gather_group(
    group: TrajectoryGroup, after_each: AfterEach, tally: GroupTally | None = None
) -> TrajectoryGroup:
    """Runs one group and `after_each` on it, with its progress in `tally`, for a caller with its own display.

    Every failure stays in the group's `exceptions`. Raises `ValueError` unless `after_each` gives one group.
    """
    try:
        (finished,) = await _Gathering([group], [tally or GroupTally()], after_each, math.inf).run()
    finally:
        group.discard_pending()
    return finished


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = True,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    concurrency: int | None = None,
    rollout_seconds: float | None = None,
    progress: bool | None = None,
    finished: list[Trajectory] | None = None,
) -> list[Trajectory]:
    """Runs rollouts at once; gives their trajectories in input order, without those that failed.

    Options and errors as in `gather_trajectory_groups`.
    """
    group = TrajectoryGroup(trajectories)
    try:
        await gather_trajectory_groups(
            [group],
            pbar_desc=pbar_desc,
            pbar_total_completion_tokens=pbar_total_completion_tokens,
            max_exceptions=max_exceptions,
            max_metrics=max_metrics,
            concurrency=concurrency,
            rollout_seconds=rollout_seconds,
            progress=progress,
        )
    finally:
        if finished is not None:
            finished += group.trajectories
    return group.trajectories


@dataclass(eq=False)
class _Gathering:
    """The shared state of one call: a tally per group, the slots for rollouts, and the first failure."""

    sources: Sequence[Awaitable[TrajectoryGroup]]
    tallies: Sequence[GroupTally]
    after_each: AfterEach | None
    max_exceptions: float
    concurrency: int | None = None
    rollout_seconds: float | None = None
    run_outside: MemberRunner = field(default_factory=member_runner.get)
    """Runs a member as it would run outside this gathering."""
    tasks: list["asyncio.Task[list[TrajectoryGroup]]"] = field(default_factory=list["asyncio.Task[Any]"])
    completed: dict[int, TrajectoryGroup] = field(default_factory=dict[int, TrajectoryGroup])
    """The groups whose rollouts are done, by source index."""
    first: Exception | RolloutError | None = None
    unscored: int = 0
    """Groups for which `after_each` raised."""
    stopped: bool = False

    def __post_init__(self) -> None:
        most, bound, seconds = self.max_exceptions, self.concurrency, self.rollout_seconds
        if not most >= 0:
            raise ValueError(f"max_exceptions must be a count, or a share as a float up to 1; it is {most}")
        if bound is not None and bound < 1:
            raise ValueError(f"concurrency must be at least 1, or None for no bound; it is {bound}")
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"rollout_seconds must be a finite number above 0, or None; it is {seconds!r}")
        self.slots = nullcontext() if bound is None else asyncio.Semaphore(bound)
        for source, tally in zip(self.sources, self.tallies, strict=True):
            if isinstance(source, TrajectoryGroup):
                tally.members, tally.certain = source.pending or len(source.trajectories), True

    async def run(self) -> list[TrajectoryGroup]:
        async with asyncio.TaskGroup() as tasks:
            self.tasks = [tasks.create_task(self._run_group(number)) for number in range(len(self.sources))]
        if self.stopped:
            raise self._error() from (self.first if isinstance(self.first, Exception) else None)
        kept = [group for task in self.tasks for group in task.result()]
        if self.tasks and not kept:  # only after_each drops a group
            _LOG.warning("after_each gave None, or no group, for every group: return the group that it scored")
        return kept

    def finished(self) -> list[TrajectoryGroup]:
        """The finished part in input order, at any time: of a running group, its finished rollouts."""
        kept: list[TrajectoryGroup] = []
        for number, (source, tally, task) in enumerate(zip(self.sources, self.tallies, self.tasks, strict=True)):
            if task.done() and not task.cancelled() and task.exception() is None:
                kept += task.result()
                continue
            own = source if isinstance(source, TrajectoryGroup) else TrajectoryGroup(tally.trajectories)
            group = self.completed.get(number, own)
            if not group.pending and group.trajectories:
                why = "the gather was stopped before it was scored"
                kept.append(group if self.after_each is None else unscored(group, why))
        return kept

    async def _run_group(self, number: int) -> list[TrajectoryGroup]:
        # The task has its own context: this runner applies to this group's members, wherever they are awaited.
        source, tally = self.sources[number], self.tallies[number]
        member_runner.set(partial(self._run_member, tally))
        old_exceptions = len(source.exceptions) if isinstance(source, TrajectoryGroup) else 0
        try:
            group = await contain_cancellation(_complete(source))
        except Exception as error:
            self.first = self.first or error
            failed = TrajectoryGroup(exceptions=[error])
            self._settle(tally, failed, old_exceptions=0)
            return [failed]
        self.completed[number] = group
        self._settle(tally, group, old_exceptions)
        if self.after_each is None:
            return [group]
        try:
            scored = await self._in_time(_scored(self.after_each, group), name_of(self.after_each), "after_each")
        except Exception as error:
            self.unscored += 1
            self._failed(tally, error)
            # A reward set by the rollout must not stand in for the missing score.
            scored = [unscored(group, f"scoring failed: {type(error).__name__}: {error}")]
            scored[0].exceptions.append(RolloutError.of(error))
        tally.trajectories = [trajectory for group in scored for trajectory in group.trajectories]
        return scored

    async def _run_member(self, tally: GroupTally, member: Awaitable[Trajectory]) -> Trajectory:
        tally.members += not tally.certain
        async with self.slots:
            # A group that a rollout runs within itself must not wait for a slot: the rollout holds one.
            member_runner.set(run_member)
            try:
                trajectory = await self._in_time(self.run_outside(member), name_of(member), "the rollout")
            except Exception as error:
                tally.done += 1
                self._failed(tally, error)
                raise
        tally.done += 1
        tally.trajectories.append(trajectory)
        return trajectory

    async def _in_time(self, running: Awaitable[T], name: str, what: str) -> T:
        """`name`: of the code that runs. `what`: what it is to the caller."""
        try:
            return await unless_stuck(in_time(contain_cancellation(running), self.rollout_seconds, what), name)
        except LateError as error:
            raise TimeoutError(str(error)) from None

    def _settle(self, tally: GroupTally, group: TrajectoryGroup, old_exceptions: int) -> None:
        """Makes the tally final: a coroutine may have added members that no runner saw."""
        exceptions = group.exceptions[old_exceptions:]
        tally.members = tally.done = max(tally.members, len(group.trajectories) + len(exceptions))
        tally.trajectories = list(group.trajectories)
        tally.certain = True
        if len(exceptions) > tally.failed:
            tally.failed = len(exceptions)
            self.first = self.first or exceptions[0]
        self._stop_if_too_many()

    def _failed(self, tally: GroupTally, error: Exception) -> None:
        tally.failed += 1
        self.first = self.first or error
        self._stop_if_too_many()

    def _stop_if_too_many(self) -> None:
        failed, allowed = sum(tally.failed for tally in self.tallies), self.max_exceptions
        if isinstance(allowed, float) and 0 < allowed <= 1:
            if not all(tally.certain for tally in self.tallies):  # a share needs the final number of rollouts
                return
            allowed *= sum(tally.members for tally in self.tallies)
        if failed > allowed and not self.stopped:
            self.stopped = True
            for task in self.tasks:
                task.cancel()

    def _error(self) -> GatherError:
        first = RolloutError.of(self.first) if isinstance(self.first, Exception) else self.first
        assert first is not None
        failed, members = (sum(getattr(tally, name) for tally in self.tallies) for name in ("failed", "members"))
        what = [f"{failed - self.unscored} of {members} rollouts failed"] if failed > self.unscored else []
        what += [f"after_each failed for {counted(self.unscored, 'group')}"] if self.unscored else []
        remedy = "Mend what raised it: the error's `__cause__` has its traceback."
        if failed > self.unscored and not self.max_exceptions:
            remedy += " Or bear some failures: max_exceptions=0.1 bears one rollout in ten."
        told = f"{' and '.join(what)}, more than max_exceptions={self.max_exceptions}. "
        return GatherError(f"{told}First: {first.type}: {first.message}", remedy)


async def _complete(source: Awaitable[object]) -> TrajectoryGroup:
    group = await source
    if not isinstance(group, TrajectoryGroup):
        raise TypeError(f"a coroutine among the groups must return a TrajectoryGroup, not {type(group).__name__}")
    return await group


async def _scored(after_each: AfterEach, group: TrajectoryGroup) -> list[TrajectoryGroup]:
    result: object = after_each(group)
    if inspect.isawaitable(result):
        result = await result
    found: list[Any] = list(cast("list[Any]", result)) if isinstance(result, list) else [result]
    groups = [each for each in found if isinstance(each, TrajectoryGroup)]
    if len(groups) < len(found) and result is not None:
        raise TypeError(f"after_each must give a TrajectoryGroup, a list of them or None, not {type(result).__name__}")
    return groups
