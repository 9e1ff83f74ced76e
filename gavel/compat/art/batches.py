"""Groups in batches, as they finish: rollouts of the next batches run while one is trained."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable

from gavel.compat.art.gather import gather_trajectory_groups
from gavel.scenarios.group import TrajectoryGroup


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
    """Gives batches in input order, with up to `max_concurrent_batches` of them running.

    `max_batch_exceptions` counts within a batch. Raises `GatherError` for a batch with more.
    """
    waiting = list(groups)
    for skipped in waiting[: batch_size * skip_batches]:
        if isinstance(skipped, TrajectoryGroup):
            skipped.discard_pending()
    waiting = waiting[batch_size * skip_batches :]
    batches = [waiting[start : start + batch_size] for start in range(0, len(waiting), batch_size)]
    running: list[asyncio.Task[list[TrajectoryGroup]]] = []
    try:
        while batches or running:
            while batches and len(running) < max_concurrent_batches:
                batch = gather_trajectory_groups(
                    batches.pop(0),
                    pbar_desc=pbar_desc,
                    pbar_total_completion_tokens=pbar_total_completion_tokens,
                    max_exceptions=max_batch_exceptions,
                )
                running.append(asyncio.create_task(batch))
            yield await running.pop(0)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
