"""Groups ahead of training: never too old, never too many, never none; counted when they are given up."""

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.prefetch import Ahead, staleness
from gavel.trainer.loop.watchdog import Watchdog
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import attempt, sampled_turn

Begins = Callable[[], None]


def a_group(place: int, version: int = 0) -> TrajectoryGroup:
    return TrajectoryGroup([Trajectory(policy_version=version)], metadata={"place": place})


def places(groups: list[TrajectoryGroup]) -> list[object]:
    return [group.metadata["place"] for group in groups]


class Stage:
    """Groups that are finished when a test says so."""

    def __init__(self, **settings: int) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self._finish: dict[int, asyncio.Future[None]] = {}
        plan = {"first": 0, "last": 100, "per_step": 2, "max_staleness": 1} | settings
        self.ahead = Ahead(self._make, watchdog=Watchdog(HANG_SECONDS), **plan)

    async def _make(self, place: int, rollout_begins: Begins) -> TrajectoryGroup:
        rollout_begins()
        self.begun.append(place)
        self._finish[place] = asyncio.get_running_loop().create_future()
        try:
            await self._finish[place]
        except asyncio.CancelledError:
            self.cancelled.append(place)
            raise
        return a_group(place)

    async def advance(self, step: int) -> None:
        self.ahead.advance(step)
        await asyncio.sleep(0)

    async def finish(self, *done: int) -> None:
        for place in done:
            self._finish[place].set_result(None)
        await asyncio.sleep(0)

    def fail(self, place: int, error: Exception) -> None:
        self._finish[place].set_exception(error)


async def test_the_groups_of_the_next_step_are_under_way_before_this_one_is_trained():
    stage = Stage()
    async with stage.ahead as ahead:
        await stage.advance(0)
        assert stage.begun == [0, 1, 2, 3]
        await stage.finish(0, 1)
        assert places((await ahead.batch()).groups) == [0, 1]
        await asyncio.sleep(0)
        assert stage.begun == [0, 1, 2, 3], "no more until the step is trained"
        await stage.advance(1)
        assert stage.begun == [0, 1, 2, 3, 4, 5]
    assert stage.cancelled == [2, 3, 4, 5]


async def test_a_step_takes_what_is_ready_in_the_order_of_the_plan():
    stage = Stage()
    async with stage.ahead as ahead:
        await stage.advance(0)
        await stage.finish(3, 2, 1)
        assert places((await ahead.batch()).groups) == [1, 2]


async def test_a_group_that_is_overtaken_for_too_long_is_given_up_counted_and_replaced():
    stage = Stage()
    async with stage.ahead as ahead:
        await stage.advance(0)
        for step, ready in enumerate([(1, 2), (3, 4)]):
            await stage.finish(*ready)
            assert (await ahead.batch()).stale == 0
            assert not stage.cancelled
            await stage.advance(step + 1)
        await asyncio.sleep(0)
        assert stage.cancelled == [0], "its policy is two steps old, one is allowed"
        assert stage.begun == [*range(9)], "as many under way as ever"
        await stage.finish(5, 6)
        assert (await ahead.batch()).stale == 1
        await stage.advance(3)
        await stage.finish(7, 8)
        assert (await ahead.batch()).stale == 0, "each is counted once"


async def test_a_ready_group_can_be_too_old_as_well():
    begins: dict[int, asyncio.Event] = {place: asyncio.Event() for place in range(100)}

    async def make(place: int, rollout_begins: Begins) -> TrajectoryGroup:
        rollout_begins()
        await begins[place].wait()
        return a_group(place)

    plan = {"first": 0, "last": 100, "per_step": 1, "max_staleness": 1}
    async with Ahead(make, watchdog=Watchdog(HANG_SECONDS), **plan) as ahead:
        ahead.advance(0)
        for step, place in enumerate([1, 2]):
            begins[place].set()
            assert places((await ahead.batch()).groups) == [place]
            if step == 1:
                begins[0].set()  # while the step that makes it too old is trained
                await asyncio.sleep(0)
            ahead.advance(step + 1)
        begins[3].set()
        batch = await ahead.batch()
        assert (places(batch.groups), batch.stale) == ([3], 1)


async def test_a_group_is_as_old_as_its_first_rollout_not_as_its_place_in_the_queue():
    stage = Stage(per_step=1)
    waiting: list[int] = []

    async def queued(place: int, rollout_begins: Begins) -> TrajectoryGroup:
        if place == 0:
            waiting.append(place)
            await asyncio.Event().wait()  # no rollout begins
        rollout_begins()
        return a_group(place)

    stage.ahead._make = queued
    async with stage.ahead as ahead:
        for step in range(5):
            await stage.advance(step)
            assert (await ahead.batch()).stale == 0
    assert waiting == [0]


async def test_a_group_that_cannot_be_made_ends_the_wait_at_once_and_the_others_with_it():
    stage = Stage()
    async with stage.ahead as ahead:
        await stage.advance(0)
        stage.fail(2, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await ahead.batch()
    assert stage.cancelled == [0, 1, 3]


async def test_a_run_that_goes_on_begins_with_the_place_of_its_step():
    stage = Stage(first=7, last=8)
    async with stage.ahead:
        await stage.advance(7)
        assert stage.begun == [14, 15], "and makes no more than is left to train"


async def test_without_staleness_nothing_is_begun_before_the_step_is_done():
    stage = Stage(max_staleness=0)
    async with stage.ahead as ahead:
        await stage.advance(0)
        await stage.finish(0, 1)
        await ahead.batch()
        assert stage.begun == [0, 1]
        await stage.advance(1)
        assert stage.begun == [0, 1, 2, 3]


@given(
    seed=st.integers(0, 2**32),
    max_staleness=st.integers(0, 3),
    per_step=st.integers(1, 4),
    steps=st.integers(1, 8),
    concurrency=st.integers(1, 20),
)
def test_whatever_the_delays_no_group_is_too_old_and_every_step_gets_its_groups(
    seed, max_staleness, per_step, steps, concurrency
):
    chance = random.Random(seed)
    live = 0
    begun: list[int] = []
    under_way: set[int] = set()

    async def some_time() -> None:
        for _ in range(chance.choice([0, 1, 3, 10, 60])):
            await asyncio.sleep(0)

    async def run() -> None:
        nonlocal live
        slots = asyncio.Semaphore(concurrency)

        async def make(place: int, rollout_begins: Begins) -> TrajectoryGroup:
            begun.append(place)
            under_way.add(place)
            try:
                async with slots:
                    rollout_begins()
                    version = live
                    await some_time()
                await some_time()
            finally:
                under_way.discard(place)
            return a_group(place, version)

        trained, stale = [], 0
        plan = {"first": 0, "last": steps, "per_step": per_step, "max_staleness": max_staleness}
        async with asyncio.timeout(HANG_SECONDS), Ahead(make, watchdog=Watchdog(HANG_SECONDS), **plan) as ahead:
            ahead.advance(0)
            for step in range(steps):
                batch = await ahead.batch()
                assert len(batch.groups) == per_step
                for group in batch.groups:
                    (trajectory,) = group
                    assert trajectory.policy_version is not None
                    assert 0 <= step - trajectory.policy_version <= max_staleness
                trained += places(batch.groups)
                stale += batch.stale
                await some_time()
                assert len(under_way) <= (max_staleness + 1) * per_step
                live = step + 1
                ahead.advance(live)
        assert len(set(trained)) == len(trained) == steps * per_step
        assert sorted(begun) == [*range(len(begun))], "the plan is followed place by place"
        assert len(begun) <= len(trained) + ahead._stale
        assert stale <= ahead._stale
        if not max_staleness:
            assert begun == trained
        assert not under_way

    asyncio.run(run())


def test_staleness_is_that_of_the_oldest_turn():
    turns = [sampled_turn([1], [2], policy_version=version) for version in (5, 4)]
    group = TrajectoryGroup([attempt(*turns), attempt(turns[0]), attempt()])
    assert staleness([group], 7) == {"staleness/mean": 2.5, "staleness/max": 3.0}
    assert staleness([TrajectoryGroup([attempt()])], 7) == {}
