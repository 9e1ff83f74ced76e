"""Groups in batches, with later ones already running."""

import asyncio

import pytest

from gavel.compat.art.batches import trajectory_group_batches
from gavel.compat.art.trajectories import Trajectory, TrajectoryGroup
from gavel.scenarios.gather import GatherError


async def one(reward: float) -> Trajectory:
    await asyncio.sleep(0)
    return Trajectory(reward=reward)


async def failing() -> Trajectory:
    raise ValueError("no")


async def test_batches_come_in_input_order_and_can_be_skipped() -> None:
    groups = [TrajectoryGroup([one(number)]) for number in range(5)]
    batches = [
        [group.trajectories[0].reward for group in batch]
        async for batch in trajectory_group_batches(groups, batch_size=2, skip_batches=1, pbar_desc=None)
    ]
    assert batches == [[2, 3], [4]]


async def test_a_batch_with_too_many_errors_ends_the_others() -> None:
    groups = [TrajectoryGroup([failing()]), *(TrajectoryGroup([one(number)]) for number in range(3))]
    with pytest.raises(GatherError, match="no"):
        async for _ in trajectory_group_batches(groups, batch_size=1):
            pass
