"""A deadline holds for code that swallows its cancellation."""

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

import pytest

from gavel.scenarios import deadline
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from tests.limits import HANG_SECONDS
from tests.scenarios.scripts import scripted


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE_SECONDS", 0.05)


@pytest.mark.parametrize("method", ["reset", "observe", "close"])
@pytest.mark.parametrize("limits", [{"call_seconds": 0.01}, {"max_seconds": 0.3, "call_seconds": 0.6}])
async def test_a_world_that_swallows_its_cancellation_costs_its_own_episode_alone(
    method: str, limits: dict[str, Any]
) -> None:
    freed = asyncio.Event()

    async def goes_on(self: object, *given: object) -> str:
        while not freed.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await freed.wait()
        return "an answer"

    world = type("World", (), {method: goes_on})
    scenario = Scenario("stubborn", environment=world, tasks=[Task(user="go")], held_out=0, max_turns=1, **limits)
    trajectory = await rollout(scripted("I am done."), scenario, scenario.tasks()[0])
    assert trajectory.status == "failed"
    assert "went on when it was cancelled" in str(trajectory.status_reason)
    freed.set()


STUBBORN = """
import asyncio, contextlib, gavel
from gavel.scenarios import deadline

deadline.GRACE_SECONDS = 0.1
DONE = gavel.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}])

async def done():
    return DONE

async def never():
    while True:
        try:
            await asyncio.sleep(0.05)
        except:
            pass

async def raises_later():
    for _ in range(4):
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            pass
    raise ValueError("too late")

async def main(cancelled):
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(cancelled, 0.1)
    members = [done(), never(), raises_later()]
    group = gavel.TrajectoryGroup(members)
    (group,) = await gavel.gather_trajectory_groups([group], rollout_seconds=0.1, max_exceptions=9, progress=False)
    await asyncio.sleep(1)
    print(len(group), *(error.type for error in group.exceptions))

async def rollout(model, task):
    await never()

stuck = gavel.Scenario("stuck", rollout=rollout, tasks=[gavel.Task(user="x")], held_out=0)

async def in_a_command(member):
    asyncio.create_task(member)
    await asyncio.sleep(0.01)

"""


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("asyncio.run(main(gavel.gather_trajectories([never()], progress=False)))", "never"),
        ("asyncio.run(main(gavel.TrajectoryGroup([never()])))", "never"),
        ("asyncio.run(main(gavel.rollout(None, stuck, stuck.tasks()[0])))", "rollout of the scenario stuck"),
        ("from gavel.cli.terminal import run_to_end\nrun_to_end(in_a_command(never()))", "never"),
    ],
)
def test_what_swallows_its_cancellation_keeps_no_process_or_command_and_is_named(code: str, named: str) -> None:
    command = [sys.executable, "-c", STUBBORN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout == ("" if "in_a_command" in code else "1 StuckError StuckError\n")
    (warning,) = done.stderr.splitlines()  # those that had a deadline are told by their errors
    assert f"{named} went on when it was cancelled" in warning
    assert done.returncode == 0
