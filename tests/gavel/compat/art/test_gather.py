"""Coroutines that give one trajectory, several, or an error."""

import pytest

from gavel.compat.art.gather import gather_trajectories, gather_trajectory_groups
from gavel.compat.art.trajectories import Trajectory, TrajectoryGroup
from gavel.scenarios.gather import GatherError


async def one(reward: float = 1.0) -> Trajectory:
    return Trajectory(reward=reward)


async def pair() -> tuple[Trajectory, Trajectory]:
    return Trajectory(reward=1.0), Trajectory(reward=0.0)


async def failing() -> Trajectory:
    raise ValueError("no")


async def test_tuples_become_lists_in_input_order() -> None:
    x_and_o, single, none = await gather_trajectories([pair(), one(), empty()], pbar_desc=None)
    assert [trajectory.reward for trajectory in x_and_o] == [1.0, 0.0]
    assert (single.reward, none) == (1.0, [])


async def empty() -> list[Trajectory]:
    return []


async def test_an_error_that_is_borne_stands_in_its_rollout_s_place() -> None:
    got = await gather_trajectories([one(), failing(), pair()], max_exceptions=1)
    assert isinstance(got[1], ValueError)
    assert len(got[2]) == 2


@pytest.mark.filterwarnings("error")
async def test_an_error_that_is_not_borne_is_raised_and_leaves_no_coroutine_behind() -> None:
    with pytest.raises(GatherError, match="no"):
        await gather_trajectories([failing(), one(), pair()])


async def test_groups_that_after_each_drops_are_left_out() -> None:
    async def none_but_the_first(group: TrajectoryGroup) -> TrajectoryGroup | None:
        return group if group.metadata["task"] == 0 else None

    groups = [TrajectoryGroup((one() for _ in range(2)), metadata={"task": task}) for task in range(3)]
    kept = await gather_trajectory_groups(groups, pbar_desc="train", after_each=none_but_the_first, max_exceptions=2)
    assert [len(group) for group in kept] == [2]
