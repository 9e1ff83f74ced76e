"""A run without progress ends, and tells what every stage is at; a schedule of turn limits."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.trainer.config import LoopConfig
from gavel.trainer.engines.protocol import deadline
from gavel.trainer.loop import watchdog as watchdog_module
from gavel.trainer.loop.watchdog import (
    LoopError,
    Watchdog,
    check_turn_limits,
    stall_seconds,
    turn_limit,
    with_turn_limit,
)

LONG = 600.0


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_run_that_stands_still_is_cancelled_and_tells_what_every_stage_is_at():
    watchdog, cancelled = Watchdog(0.1), asyncio.Event()

    async def stuck(stage, what, **kind) -> None:
        with watchdog.during(stage, what, **kind):
            try:
                await for_ever()
            except asyncio.CancelledError:
                cancelled.set()
                raise

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(stuck("rollout", "of 8 rollouts of task X"))
            tasks.create_task(stuck("training", "waiting for 4 more groups", counted=False))

    with pytest.raises(LoopError) as error:
        await watchdog.guard(run())
    assert cancelled.is_set()
    told = re.sub(r"for \d+ s", "for N s", error.value.message)
    assert told.endswith(
        "; rollout: 3 of 8 rollouts of task X for N s; judging: nothing; training: waiting for 4 more groups for N s"
    )
    assert watchdog.state() == "rollout: nothing; judging: nothing; training: nothing"


async def test_of_many_kinds_of_work_the_oldest_are_named():
    watchdog = Watchdog(0.1)

    async def run() -> None:
        with (
            watchdog.during("rollout", "of task 0"),
            watchdog.during("rollout", "of task 1"),
            watchdog.during("rollout", "of task 2"),
            watchdog.during("rollout", "of task 3"),
            watchdog.during("rollout", "of task 4"),
        ):
            await for_ever()

    with pytest.raises(LoopError, match=r"1 of task 0 for 0 s, .* 1 of task 2 for 0 s, and of 2 more; judging"):
        await watchdog.guard(run())


async def test_a_run_that_moves_may_take_longer_than_a_stall(monkeypatch):
    stall, now = 0.1, time.monotonic()
    monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: now))
    watchdog = Watchdog(stall)

    async def run() -> str:
        nonlocal now
        for _ in range(5):
            now += 0.6 * stall
            with watchdog.during("judging", "groups"):
                await asyncio.sleep(1.5 * stall)  # the guard looks meanwhile
        return "done"

    assert await watchdog.guard(run()) == "done"


async def test_cancelling_the_guard_cancels_the_run():
    ended = asyncio.Event()

    async def run() -> None:
        try:
            await for_ever()
        finally:
            ended.set()

    guarding = asyncio.create_task(Watchdog(LONG).guard(run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    guarding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await guarding
    assert ended.is_set()


async def test_work_that_will_not_end_is_left_behind(monkeypatch):
    monkeypatch.setattr(watchdog_module, "_GRACE", 0.1)
    let_go = asyncio.Event()

    async def deaf() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(LoopError, match="nothing has happened"):
        await Watchdog(0.1).guard(deaf())
    let_go.set()


def test_a_run_waits_as_long_as_its_longest_turn_may_take_unless_told_otherwise():
    assert stall_seconds(LoopConfig()) == 1800
    assert stall_seconds(LoopConfig(max_tokens=32_768)) == deadline(32_768) > 1800
    assert stall_seconds(LoopConfig(max_tokens=32_768, stall_seconds=5)) == 5


LIMITS = {0: 10, 20: 20, 40: 30}


def test_the_limit_is_that_of_the_last_step_that_was_reached() -> None:
    assert [turn_limit(LIMITS, step) for step in (0, 19, 20, 39, 40, 1000)] == [10, 10, 20, 20, 30, 30]
    assert turn_limit({20: 20}, 19) is None
    assert turn_limit({40: 30, 0: 10}, 5) == 10


def test_rollouts_get_the_limit_and_the_scenario_stays_as_it_was() -> None:
    own = scenario.max_turns
    assert with_turn_limit(scenario, {0: 2}, 3).max_turns == 2
    assert with_turn_limit(scenario, {5: 2}, 3).max_turns == own
    assert scenario.max_turns == own
    assert with_turn_limit(scenario, {0: 2}, 3).tasks("held_out") == scenario.tasks("held_out")


def test_wrong_limits_are_refused() -> None:
    async def own(model: object, task: Task) -> None: ...

    counted = Scenario("own", rollout=own, tasks=[Task(user="Hello")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(LoopError, match="rollout of its own"):
        check_turn_limits(counted, {0: 2})
    check_turn_limits(counted, {})
    with pytest.raises(ScenarioError, match="no limit"):
        scenario.with_max_turns(0)
    for wrong in ({0: 0}, {-1: 3}):
        with pytest.raises(ValueError, match="turn_limits"):
            LoopConfig(turn_limits=wrong)
