"""A trajectory that is handed over beside the return value."""

import pytest

from gavel.compat.art.trajectories import Trajectory
from gavel.compat.art.yield_trajectory import capture_yielded_trajectory, yield_trajectory


async def test_the_last_trajectory_that_was_yielded_counts() -> None:
    async def rollout() -> None:
        yield_trajectory(Trajectory(reward=0.1))
        yield_trajectory(Trajectory(reward=0.2))

    assert (await capture_yielded_trajectory(rollout())).reward == 0.2


async def test_without_a_trajectory_or_a_capture_there_is_an_error() -> None:
    async def nothing() -> None:
        pass

    with pytest.raises(RuntimeError, match="no trajectory was yielded"):
        await capture_yielded_trajectory(nothing())
    with pytest.raises(RuntimeError, match="inside capture_yielded_trajectory"):
        yield_trajectory(Trajectory())
