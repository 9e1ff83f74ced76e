"""ART's gather functions: Gavel's, for coroutines that return one trajectory or several; groups in batches.

Scripts build their own gather from a context that counts failures, and a wrapper for each rollout:

    with set_gather_context(GatherContext(max_exceptions=1)):
        results = await asyncio.gather(*[wrap_group_awaitable(game) for game in games])  # None where one failed

The bar of `context.pbar` may be set after the wrapped rollouts were made, and before they are awaited.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from gavel.scenarios.gather import gather_trajectories as _gather_trajectories
from gavel.scenarios.gather import gather_trajectory_groups as gather_trajectory_groups
from gavel.scenarios.group import TrajectoryGroup, discard
from gavel.scenarios.trajectory import Trajectory

Group = TypeVar("Group", bound=Iterable[Any])
"""A group, or the tuple of trajectories that a game with several players returns."""


@dataclass
class GatherContext:
    """The state of one gather: its progress bar, and its tolerated failures."""

    pbar: Any = None
    """A bar of tqdm."""
    max_exceptions: int | float = 0
    """Number of failures; between 0 and 1, a share of the bar's total."""
    max_metrics: int | None = None
    """Has no effect: the bar shows the number of finished rollouts."""
    increment_pbar: bool = True
    exceptions: int = 0
    """Failures so far."""

    def update_pbar(self, n: int) -> None:
        """Adds `n` trajectories to the bar, if there is one."""
        if self.pbar is not None and self.increment_pbar:
            self.pbar.update(n)

    def too_many_exceptions(self) -> bool:
        """Whether more failures occurred than the gather tolerates."""
        total = self.pbar.total if 0 < self.max_exceptions < 1 and self.pbar is not None else None
        return self.exceptions > self.max_exceptions * (total or 1)

    def count_exception(self, error: Exception) -> None:
        """Counts a failure. Raises it if it exceeds the limit."""
        self.exceptions += 1
        if self.too_many_exceptions():
            raise error


_context: ContextVar[GatherContext | None] = ContextVar("gather_context", default=None)


@contextmanager
def set_gather_context(context: GatherContext) -> Generator[None]:
    """Sets the `context` of rollouts wrapped in the block."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def get_gather_context() -> GatherContext:
    """The context of the enclosing gather; outside of one, a new context that tolerates no failure."""
    return _context.get() or GatherContext()


async def wrap_group_awaitable(awaitable: Awaitable[Group]) -> Group | None:
    """The result of `awaitable`, or None for a tolerated failure."""
    context = get_gather_context()
    try:
        group = await awaitable
    except Exception as error:
        return context.count_exception(error)
    context.update_pbar(len([*group]))
    return group


async def wrap_trajectories_awaitable(
    awaitable: Awaitable[Trajectory | Iterable[Trajectory]],
) -> Trajectory | list[Trajectory] | Exception:
    """The trajectory, the list of one rollout's trajectories, or a tolerated failure."""
    context = get_gather_context()
    try:
        result = await awaitable
        result = result if isinstance(result, Trajectory) else list(result)
    except Exception as error:
        context.count_exception(error)
        return error
    context.update_pbar(1)
    return result


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Any]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> list[Any]:
    """Each coroutine's result in input order: a trajectory, or a list of trajectories.

    A tolerated exception (see `max_exceptions`) replaces the result of its rollout.
    """
    sources = list(trajectories)
    outcomes: list[Any] = [None] * len(sources)

    async def take_outcome(number: int) -> Trajectory:
        try:
            result = await sources[number]
            outcomes[number] = result if isinstance(result, Trajectory) else list(result)
        except Exception as error:
            outcomes[number] = error
            raise
        return result if isinstance(result, Trajectory) else next(iter(outcomes[number]), Trajectory())

    try:
        await _gather_trajectories(
            [take_outcome(number) for number in range(len(sources))],
            pbar_desc=pbar_desc,
            pbar_total_completion_tokens=pbar_total_completion_tokens,
            max_exceptions=max_exceptions,
        )
    finally:
        for source in sources:
            discard(source)
    return outcomes


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
    pbar_total_completion_tokens: bool = False,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Yields batches in input order, with up to `max_concurrent_batches` of them running.

    `max_batch_exceptions` counts within a batch. Raises `GatherError` for a batch with more.
    """
    waiting, first = list(groups), batch_size * skip_batches
    for skipped in waiting[:first]:
        if isinstance(skipped, TrajectoryGroup):
            skipped.discard_pending()
    running: list[asyncio.Task[list[TrajectoryGroup]]] = []
    try:
        for start in range(first, len(waiting), batch_size):
            if len(running) == max_concurrent_batches:
                yield await running.pop(0)
            batch = gather_trajectory_groups(
                waiting[start : start + batch_size],
                pbar_desc=pbar_desc,
                max_exceptions=max_batch_exceptions,
                pbar_total_completion_tokens=pbar_total_completion_tokens,
            )
            running.append(asyncio.create_task(batch))
        while running:
            yield await running.pop(0)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
