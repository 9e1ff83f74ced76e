"""A gather that a script builds itself, as for games with two players."""

import asyncio

import pytest
from tqdm import tqdm

from gavel.compat.art.gather import (
    GatherContext,
    get_gather_context,
    set_gather_context,
    wrap_group_awaitable,
    wrap_trajectories_awaitable,
)
from gavel.compat.art.trajectories import Trajectory, TrajectoryGroup


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


async def test_the_bar_counts_trajectories() -> None:
    class Bar:
        total, done = 5, 0.0

        def update(self, n: float | None = 1) -> None:
            self.done += n or 0

    bar = Bar()
    with set_gather_context(GatherContext(pbar=bar)):
        await wrap_group_awaitable(group(3))
        await wrap_group_awaitable(game(1.0))
    assert bar.done == 5


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


def test_contexts_end_with_their_block() -> None:
    with set_gather_context(GatherContext(max_exceptions=3)):
        assert get_gather_context().max_exceptions == 3
    assert get_gather_context().max_exceptions == 0
