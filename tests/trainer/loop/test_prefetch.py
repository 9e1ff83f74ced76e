"""Prefetched groups: never too old, never more than allowed; stale ones are counted and replaced."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.prefetch import GroupSlot, RolloutPrefetcher, staleness
from gavel.trainer.loop.watchdog import Watchdog
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import attempt, sampled_turn


def a_group(position: int, version: int = 0) -> TrajectoryGroup:
    return TrajectoryGroup([Trajectory(policy_version=version)], metadata={"position": position})


def positions(groups: list[TrajectoryGroup]) -> list[object]:
    return [group.metadata["position"] for group in groups]


class Stage:
    """Groups that are finished when a test says so."""

    def __init__(self, **settings: int) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self._finish: dict[int, asyncio.Future[None]] = {}
        plan = {"first": 0, "last": 100, "per_step": 2, "max_staleness": 1} | settings
        self.prefetcher = RolloutPrefetcher(self._make, watchdog=Watchdog(HANG_SECONDS), **plan)

    async def _make(self, slot: GroupSlot) -> TrajectoryGroup:
        slot.rollout_starts()
        self.started.append(slot.position)
        self._finish[slot.position] = asyncio.get_running_loop().create_future()
        try:
            await self._finish[slot.position]
        except asyncio.CancelledError:
            self.cancelled.append(slot.position)
            raise
        return a_group(slot.position)

    async def advance(self, step: int) -> None:
        self.prefetcher.advance(step)
        await asyncio.sleep(0)

    async def finish(self, *done: int) -> None:
        for position in done:
            self._finish[position].set_result(None)
        await asyncio.sleep(0)

    def fail(self, position: int, error: Exception) -> None:
        self._finish[position].set_exception(error)


async def test_the_groups_of_the_next_step_are_in_flight_before_this_one_is_trained():
    stage = Stage()
    async with stage.prefetcher as prefetcher:
        await stage.advance(0)
        assert stage.started == [0, 1, 2, 3]
        await stage.finish(0, 1)
        assert positions((await prefetcher.batch()).groups) == [0, 1]
        await asyncio.sleep(0)
        assert stage.started == [0, 1, 2, 3], "no more until the step is trained"
        await stage.advance(1)
        assert stage.started == [0, 1, 2, 3, 4, 5]
    assert stage.cancelled == [2, 3, 4, 5]


async def test_a_step_takes_what_is_ready_in_the_order_of_the_plan():
    stage = Stage()
    async with stage.prefetcher as prefetcher:
        await stage.advance(0)
        await stage.finish(3, 2, 1)
        assert positions((await prefetcher.batch()).groups) == [1, 2]


async def test_a_group_that_becomes_too_old_is_cancelled_counted_and_replaced():
    stage = Stage()
    async with stage.prefetcher as prefetcher:
        await stage.advance(0)
        for step, ready in enumerate([(1, 2), (3, 4)]):
            await stage.finish(*ready)
            assert (await prefetcher.batch()).stale == 0
            assert not stage.cancelled
            await stage.advance(step + 1)
        await asyncio.sleep(0)
        assert stage.cancelled == [0], "its policy is two steps old, one is allowed"
        assert stage.started == [*range(9)], "as many in flight as before"
        await stage.finish(5, 6)
        assert (await prefetcher.batch()).stale == 1
        await stage.advance(3)
        await stage.finish(7, 8)
        assert (await prefetcher.batch()).stale == 0, "each is counted once"


async def test_a_ready_group_can_be_too_old_as_well():
    begins: dict[int, asyncio.Event] = {position: asyncio.Event() for position in range(100)}

    async def make(slot: GroupSlot) -> TrajectoryGroup:
        slot.rollout_starts()
        await begins[slot.position].wait()
        return a_group(slot.position)

    plan = {"first": 0, "last": 100, "per_step": 1, "max_staleness": 1}
    async with RolloutPrefetcher(make, watchdog=Watchdog(HANG_SECONDS), **plan) as prefetcher:
        prefetcher.advance(0)
        for step, position in enumerate([1, 2]):
            begins[position].set()
            assert positions((await prefetcher.batch()).groups) == [position]
            if step == 1:
                begins[0].set()  # while the step that makes it too old is trained
                await asyncio.sleep(0)
            prefetcher.advance(step + 1)
        begins[3].set()
        batch = await prefetcher.batch()
        assert (positions(batch.groups), batch.stale) == ([3], 1)


async def test_a_group_is_as_old_as_its_first_rollout_not_as_its_position_in_the_queue():
    stage = Stage(per_step=1)
    waiting: list[int] = []

    async def queued(slot: GroupSlot) -> TrajectoryGroup:
        if slot.position == 0:
            waiting.append(slot.position)
            await asyncio.Event().wait()  # no rollout starts
        slot.rollout_starts()
        return a_group(slot.position)

    stage.prefetcher._make = queued
    async with stage.prefetcher as prefetcher:
        for step in range(5):
            await stage.advance(step)
            assert (await prefetcher.batch()).stale == 0
    assert waiting == [0]


async def test_a_group_that_cannot_be_made_ends_the_wait_at_once_and_the_others_with_it():
    stage = Stage()
    async with stage.prefetcher as prefetcher:
        await stage.advance(0)
        stage.fail(2, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await prefetcher.batch()
    assert stage.cancelled == [0, 1, 3]


async def test_a_resumed_run_starts_at_the_position_of_its_step():
    stage = Stage(first=7, last=8)
    async with stage.prefetcher:
        await stage.advance(7)
        assert stage.started == [14, 15], "and makes no more than is left to train"


async def test_without_staleness_nothing_of_the_next_step_starts_before_this_one_is_done():
    stage = Stage(max_staleness=0)
    async with stage.prefetcher as prefetcher:
        await stage.advance(0)
        await stage.finish(0, 1)
        await prefetcher.batch()
        assert stage.started == [0, 1]
        await stage.advance(1)
        assert stage.started == [0, 1, 2, 3]


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
    started: list[int] = []
    in_flight: set[int] = set()

    async def some_time() -> None:
        for _ in range(chance.choice([0, 1, 3, 10, 60])):
            await asyncio.sleep(0)

    async def run() -> None:
        nonlocal live
        limiter = asyncio.Semaphore(concurrency)

        async def make(slot: GroupSlot) -> TrajectoryGroup:
            started.append(slot.position)
            in_flight.add(slot.position)
            try:
                async with limiter:
                    slot.rollout_starts()
                    version = live
                    await some_time()
                await some_time()
            finally:
                in_flight.discard(slot.position)
            return a_group(slot.position, version)

        trained, stale = [], 0
        plan = {"first": 0, "last": steps, "per_step": per_step, "max_staleness": max_staleness}
        async with (
            asyncio.timeout(HANG_SECONDS),
            RolloutPrefetcher(make, watchdog=Watchdog(HANG_SECONDS), **plan) as prefetcher,
        ):
            prefetcher.advance(0)
            for step in range(steps):
                batch = await prefetcher.batch()
                assert len(batch.groups) == per_step
                for group in batch.groups:
                    (trajectory,) = group
                    assert trajectory.policy_version is not None
                    assert 0 <= step - trajectory.policy_version <= max_staleness
                trained += positions(batch.groups)
                stale += batch.stale
                await some_time()
                assert len(in_flight) <= (max_staleness + 1) * per_step
                live = step + 1
                prefetcher.advance(live)
        assert len(set(trained)) == len(trained) == steps * per_step
        assert sorted(started) == [*range(len(started))], "the plan is followed position by position"
        assert len(started) <= len(trained) + prefetcher._stale
        assert stale <= prefetcher._stale
        if not max_staleness:
            assert started == trained
        assert not in_flight

    asyncio.run(run())


def filled_one_after_the_other(signals: list[bool], further: list[bool], bound: int) -> tuple[list[int], int, int]:
    """DAPO's loop in its plainest form: the numbers of the groups of a step, how many are further, and unfilled."""
    groups, missing, refills = list(range(len(signals))), signals.count(False), 0
    while missing and refills < bound:
        groups.append(len(signals) + refills)
        missing -= further[refills]
        refills += 1
    return groups, refills, missing


@given(
    seed=st.integers(0, 2**32),
    signals=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4),
    further=st.lists(st.booleans(), min_size=8, max_size=8),
    bound=st.integers(1, 8),
    max_staleness=st.integers(0, 2),
)
def test_groups_without_a_signal_are_replaced_up_to_the_bound_whoever_is_ready_first(
    seed, signals, further, bound, max_staleness
):
    chance = random.Random(seed)

    async def make(slot: GroupSlot) -> TrajectoryGroup:
        slot.rollout_starts()
        for _ in range(chance.choice([0, 1, 3, 10])):
            await asyncio.sleep(0)
        step, number = divmod(slot.position, 3)
        signal = signals[step % len(signals)][number] if slot.refill is None else further[slot.refill]
        return TrajectoryGroup(
            [], metadata={"at": number if slot.refill is None else 3 + slot.refill, "signal": signal}
        )

    async def run() -> None:
        async with (
            asyncio.timeout(HANG_SECONDS),
            RolloutPrefetcher(
                make,
                first=0,
                last=len(signals),
                per_step=3,
                max_staleness=max_staleness,
                watchdog=Watchdog(HANG_SECONDS),
                refills=bound,
                has_signal=lambda group: bool(group.metadata["signal"]),
            ) as prefetcher,
        ):
            for step, own in enumerate(signals):
                prefetcher.advance(step)
                assert len(prefetcher.tallies) <= 3 * (max_staleness + 1)
                batch = await prefetcher.batch()
                with_signal = sum(bool(group.metadata["signal"]) for group in batch.groups)
                assert with_signal + batch.unfilled == 3
                assert len(batch.groups) == with_signal + batch.refills + batch.unfilled
                assert batch.refills <= bound
                if not max_staleness:
                    found = [group.metadata["at"] for group in batch.groups], batch.refills, batch.unfilled
                    assert found == filled_one_after_the_other(own, further, bound)

    asyncio.run(run())


def test_staleness_is_that_of_the_oldest_turn():
    turns = [sampled_turn([1], [2], policy_version=version) for version in (5, 4)]
    group = TrajectoryGroup([attempt(*turns), attempt(turns[0]), attempt()])
    assert staleness([group], 7) == {"staleness/mean": 2.5, "staleness/max": 3.0}
    assert staleness([TrajectoryGroup([attempt()])], 7) == {}
