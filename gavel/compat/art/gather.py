"""ART's gather functions: Gavel's, for coroutines that give one trajectory or several."""

import asyncio
import inspect
from collections.abc import Awaitable, Iterable
from typing import Any

from gavel.compat.art.gather_context import GatherContext as GatherContext
from gavel.compat.art.gather_context import get_gather_context as get_gather_context
from gavel.compat.art.gather_context import set_gather_context as set_gather_context
from gavel.compat.art.gather_context import wrap_group_awaitable as wrap_group_awaitable
from gavel.compat.art.gather_context import wrap_trajectories_awaitable as wrap_trajectories_awaitable
from gavel.scenarios.gather import AfterEach
from gavel.scenarios.gather import gather_trajectories as _gather_trajectories
from gavel.scenarios.gather import gather_trajectory_groups as _gather_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Runs all groups; gives them in input order, those that `after_each` dropped left out."""
    return await _gather_groups(
        groups,
        pbar_desc=pbar_desc,
        pbar_total_completion_tokens=pbar_total_completion_tokens,
        max_exceptions=max_exceptions,
        max_metrics=max_metrics,
        after_each=after_each,
    )


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Any]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> list[Any]:
    """What each coroutine gives, in input order: a trajectory, or a list of those that it returned.

    Where `max_exceptions` bears it, an exception stands in the place of its rollout.
    """
    sources = list(trajectories)
    outcomes: list[Any] = [None] * len(sources)

    async def outcome(number: int) -> Trajectory:
        try:
            result = await sources[number]
            if not isinstance(result, Trajectory):
                result = list(result)
            outcomes[number] = result
        except Exception as error:
            outcomes[number] = error
            raise
        if isinstance(result, Trajectory):
            return result
        return result[0] if result else Trajectory()

    try:
        await _gather_trajectories(
            [outcome(number) for number in range(len(sources))],
            pbar_desc=pbar_desc,
            pbar_total_completion_tokens=pbar_total_completion_tokens,
            max_exceptions=max_exceptions,
        )
    finally:
        for source in sources:  # one that never began would be reported as never awaited
            if inspect.iscoroutine(source) and inspect.getcoroutinestate(source) == inspect.CORO_CREATED:
                source.close()
            elif isinstance(source, asyncio.Future) and not source.done():
                source.cancel()
    return outcomes
