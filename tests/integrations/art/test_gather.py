"""Gathers, of groups, of trajectories, in batches, and of a script's own."""

import asyncio

import pytest
from tqdm import tqdm

from gavel.integrations.art.batches import trajectory_group_batches
from gavel.integrations.art.gather import (
    GatherContext,
    gather_trajectories,
    gather_trajectory_groups,
    set_gather_context,
    wrap_group_awaitable,
    wrap_trajectories_awaitable,
)
from gavel.integrations.art.trajectories import Trajectory, TrajectoryGroup
from gavel.integrations.art.yield_trajectory import capture_yielded_trajectory, yield_trajectory
from gavel.scenarios.gather import GatherError


async def one(reward: float = 1.0) -> Trajectory:
    await asyncio.sleep(0)
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


async def game(reward: float) -> tuple[Trajectory, Trajectory]:
    return Trajectory(reward=reward), Trajectory(reward=-reward)


async def group(size: int) -> TrajectoryGroup:
    return TrajectoryGroup([Trajectory() for _ in range(size)])


async def lost() -> tuple[Trajectory, Trajectory]:
    raise ValueError("the game was lost")


async def test_a_script_gathers_games_by_player() -> None:
    context = GatherContext(max_exceptions=1)
    with set_gather_context(context):
        future = asyncio.gather(*[wrap_group_awaitable(one) for one in (game(1.0), lost(), game(0.5))])
        context.pbar = bar = tqdm(total=6, disable=True)
        played = [pair for pair in await future if pair is not None]
    bar.close()
    x, o = (TrajectoryGroup(player) for player in zip(*played, strict=True))
    assert [member.reward for member in x] == [1.0, 0.5]
    assert [member.reward for member in o] == [-1.0, -0.5]
    assert context.exceptions == 1


@pytest.mark.parametrize(("borne", "total"), [(0, None), (0.4, 2)])
async def test_a_failure_too_many_is_raised(borne: float, total: int | None) -> None:
    bar = None if total is None else tqdm(total=total, disable=True)
    with set_gather_context(GatherContext(pbar=bar, max_exceptions=borne)), pytest.raises(ValueError, match="lost"):
        await wrap_group_awaitable(lost())


async def test_a_rollout_s_failure_that_is_borne_is_given() -> None:
    with set_gather_context(GatherContext(max_exceptions=1)):
        got = [await wrap_trajectories_awaitable(one) for one in (game(1.0), lost())]
    assert isinstance(got[0], list)
    assert isinstance(got[1], ValueError)


async def test_batches_come_in_input_order_and_can_be_skipped() -> None:
    groups = [TrajectoryGroup([one(number)]) for number in range(5)]
    batches = [
        [group.trajectories[0].reward for group in batch]
        async for batch in trajectory_group_batches(groups, batch_size=2, skip_batches=1, pbar_desc=None)
    ]
    assert batches == [[2, 3], [4]]


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
