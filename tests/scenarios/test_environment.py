"""Worlds with a state: one for each episode, always closed, and what they do wrong stays within their episode, also
where their code swallows its cancellation."""

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from gavel.llm.types import Message
from gavel.scenarios import deadline
from gavel.scenarios import environment as environments
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.environment import not_a_tool, tools_of
from gavel.scenarios.episode import Episode
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory
from tests.limits import HANG_SECONDS
from tests.scenarios.scripts import scripted

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
TASK = Task(user="Fill the box.", data={"wanted": 3})
FILLED = scripted(("put", {"amount": 3}), "Done.")


class Box:
    """A box that is filled, and remembers what happened to it."""

    made: ClassVar[list["Box"]] = []

    def __init__(self) -> None:
        self.content = 0
        self.is_closed = False
        Box.made.append(self)

    async def reset(self, task: Task, episode: Episode) -> str:
        self.wanted = task.data["wanted"]
        self.lucky = episode.random.randrange(10**9)
        return f"The box is empty. Your number is {self.lucky}."

    async def put(self, amount: int) -> int:
        """Put something in."""
        await asyncio.sleep(0)
        self.content += amount
        return self.content

    def look(self, task: Task, episode: Episode) -> dict[str, Any]:
        """Look into the box."""
        return {"content": self.content, "turns": episode.turns, "task": task.user}

    @staticmethod
    def size() -> int:
        """Its size."""
        return 10

    def seal(self) -> Any:
        """Seal the box."""
        return done("sealed")

    @not_a_tool
    def shake(self, hard: bool) -> None:
        """Not for agents."""

    def undocumented(self) -> None: ...

    def _hidden(self) -> None:
        """Hidden."""

    def success(self, trajectory: Trajectory) -> bool:
        return self.content == self.wanted and not self.is_closed

    def reward(self, trajectory: Trajectory) -> float:
        return self.content / 10

    async def close(self) -> None:
        self.is_closed = True


def scenario(environment: Any = Box, **options: Any) -> Scenario:
    return Scenario("boxes", environment=environment, tasks=[TASK], held_out=0, **options)


async def play(model: FunctionModel, environment: Any = Box, seed: int | None = 1, **options: Any) -> Trajectory:
    return await rollout(model, scenario(environment, **options), TASK, seed=seed)


async def test_an_episode_acts_on_its_own_world_and_closes_it():
    Box.made.clear()
    episode = await play(scripted(("put", {"amount": 3}), ("look", {}), "Done."))
    assert episode.status == "finished"
    assert (episode.metrics["success"], episode.metrics["environment_reward"]) == (1, 0.3)
    (box,) = Box.made
    assert box.is_closed
    assert episode.messages()[0] == {
        "role": "user",
        "content": f"Fill the box.\n\nThe box is empty. Your number is {box.lucky}.",
    }
    assert json.loads(episode.messages()[4]["content"]) == {"content": 3, "turns": 2, "task": "Fill the box."}
    made: Any = scenario()
    assert (made.success(episode), made.hand_reward(episode)) == (1, 0.3)


class Story:
    """Observations as user turns."""

    def __init__(self, ending: Any = None) -> None:
        self.said: list[str] = []
        self.ending = ending

    async def observe(self, action: str) -> Any:
        self.said.append(action)
        return {"room": len(self.said)} if len(self.said) < 3 else self.ending


@pytest.mark.parametrize(("ending", "last"), [(None, "go"), (done("You win."), "You win."), (done(None), "go")])
async def test_the_world_answers_words_until_it_has_no_more(ending: Any, last: str):
    episode = await play(scripted("go"), functools.partial(Story, ending))
    assert episode.status == "finished"
    assert [message["role"] for message in episode.messages()][:5] == ["user", "assistant"] * 2 + ["user"]
    assert episode.messages()[2]["content"] == '{"room": 1}'
    assert episode.messages()[-1]["content"] == last
    assert episode.metrics["turns"] == 3


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say what it is")


class _Fatal(BaseException):
    """What no `except Exception` catches."""


ERRORS = [SystemExit(2), asyncio.CancelledError(), _Mute(), _Fatal(), OSError("out of order")]


def _raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


async def _hangs(*_: object) -> None:
    await asyncio.sleep(60)


async def _quits(*_: object) -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await asyncio.sleep(0)


@pytest.mark.parametrize("method", ["reset", "observe", "success", "reward"])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        *((_raising(error), type(error).__name__) for error in ERRORS if not isinstance(error, asyncio.CancelledError)),
        (_raising(asyncio.CancelledError()), "cancelled from within"),
        (_hangs, "took longer than 0.05 s"),
        (_quits, "the episode was cancelled from within"),
    ],
)
async def test_a_world_that_fails_costs_its_own_episode(method: str, how: Callable[..., Any], reason: str):
    Box.made.clear()
    failed, well = await asyncio.gather(
        play(scripted("Done."), type("Broken", (Box,), {method: how}), call_seconds=0.05),
        play(FILLED),
    )
    assert failed.status == "failed"
    assert reason in (failed.status_reason or "")
    assert well.metrics["success"] == 1
    assert all(box.is_closed for box in Box.made)


async def test_a_world_that_is_made_after_its_deadline_is_closed_all_the_same():
    go_on, closed = threading.Event(), threading.Event()

    class Late:
        def __init__(self) -> None:
            go_on.wait(HANG_SECONDS)
            self.close = closed.set

    episode = await play(scripted("Done."), Late, call_seconds=0.05)
    assert "making the environment took" in (episode.status_reason or "")
    go_on.set()
    assert await asyncio.to_thread(closed.wait, HANG_SECONDS)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"max_steps": 1}, "1 steps of the world were used up"),
        ({"max_seconds": 0.2}, "the episode took longer than 0.2 s"),
    ],
)
async def test_an_episode_that_takes_too_long_is_truncated_and_measured(limit: dict[str, Any], reason: str):
    class Slow(Box):
        async def wait(self) -> str:
            """Wait."""
            await asyncio.sleep(60)
            return ""

    episode = await play(scripted(("put", {"amount": 3}), ("wait", {})), Slow, **limit)
    assert (episode.status, episode.status_reason) == ("truncated", reason)
    assert episode.metrics["success"] == 1


@pytest.mark.parametrize("how", [_raising(OSError()), _hangs])
async def test_a_world_that_cannot_be_closed_is_told_in_the_logs(how: Callable[[], Any], monkeypatch: Any):
    monkeypatch.setattr(environments, "CLOSE_SECONDS", 0.05)
    episode = await play(FILLED, type("Broken", (Box,), {"close": how}))
    assert (episode.status, episode.metrics["success"]) == ("finished", 1)
    assert episode.logs[0].startswith("the environment was not closed: close")


async def test_a_cancelled_episode_closes_its_world():
    Box.made.clear()

    async def reply(request: ChatRequest) -> Message:
        task.cancel()
        await asyncio.sleep(60)
        return {}

    task = asyncio.create_task(play(FunctionModel("slow", reply)))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Box.made[0].is_closed


async def test_tools_stand_beside_those_of_the_world_and_two_of_a_name_are_told():
    def weigh(what: str) -> int:
        return 5

    episode = await play(scripted(("weigh", {"what": "box"}), "Done."), tools=[weigh])
    assert episode.messages()[2]["content"] == "5"
    twice = await play(scripted("Done."), tools=[Box.size])
    assert twice.status == "failed"
    assert "two tools are called size" in (twice.status_reason or "")


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("reset", CIRCLE),
        ("observe", object()),
        ("observe", b"a picture"),
        ("success", float("nan")),
        ("success", 7),
        ("reward", float("inf")),
    ],
)
async def test_what_cannot_be_shown_or_counted_fails_the_episode(method: str, value: object):
    episode = await play(scripted("Hello."), type("Bad", (), {method: lambda *_: value}))
    assert episode.status == "failed"
    assert f"{method} of the environment" in (episode.status_reason or "")


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_whatever_a_tool_raises_is_a_tool_error(error: BaseException):
    class Bad(Box):
        def seal(self) -> Any:
            """Seal the box."""
            raise error

    episode = await play(scripted(("seal", {}), "Done."), Bad)
    assert (episode.status, episode.metrics["tool_errors"]) == ("finished", 1)


class Cabinet(Box):
    """Tools of every kind that a class can have."""

    prefix = "drawer"

    @classmethod
    def label(cls, number: int) -> str:
        """The label of a drawer."""
        return f"{cls.prefix} {number}"

    @functools.lru_cache  # noqa: B019 a user's way to write it
    def opened(self, number: int) -> str:
        """Open a drawer."""
        return f"open {number} of {type(self).__name__}"

    @not_a_tool
    @classmethod
    def hidden(cls) -> None:
        """No tool."""

    @functools.lru_cache  # noqa: B019 a user's way to write it
    @not_a_tool
    def hidden_as_well(self) -> None:
        """No tool."""


async def test_tools_are_the_public_documented_methods_of_any_kind():
    tools = {tool.name: tool for tool in tools_of(Cabinet)}
    assert list(tools) == ["put", "look", "size", "seal", "label", "opened"]
    assert tools["put"].schema["function"]["parameters"]["required"] == ["amount"]
    said = [(await tools[name].call('{"number": 3}', environment=Cabinet())).content for name in ("label", "opened")]
    assert said == ["drawer 3", "open 3 of Cabinet"]
    assert all("cls" not in str(tool.schema) and "self" not in str(tool.schema) for tool in tools.values())


async def test_parameters_without_annotations_are_filled_in_by_their_names():
    class Bare:
        def reset(self, task, episode):
            return f"{task.user} {episode.seed}"

        def success(self, episode, attempt):
            return attempt.messages_and_choices.pop().message.content == "I am done." and episode.seed == 3

    played = await play(scripted("I am done."), Bare, seed=3)
    assert f"{TASK.user} 3" in str(played.messages())
    assert played.messages()[-1]["content"] == "I am done."  # the check took it away from a copy
    assert played.metrics["success"] == 1


async def test_a_plain_world_that_hangs_costs_its_own_episode_alone():
    release, threads = threading.Event(), []

    class Plain:
        def reset(self, task: Task, episode: Episode) -> None:
            self.hangs = episode.seed == 0
            threads.append(threading.get_ident())

        def look(self) -> str:
            """Look."""
            threads.append(threading.get_ident())
            return str(release.wait(HANG_SECONDS)) if self.hangs else "nothing"

        def refund(self) -> str:
            """Refund."""
            return "refunded"

        def success(self, trajectory: Trajectory) -> bool:
            return True

    agent = scripted(("look", {}), ("refund", {}), "I am done.")
    world = scenario(Plain, call_seconds=0.2)
    try:
        stuck, *others = await asyncio.gather(*(rollout(agent, world, TASK, seed=seed) for seed in range(8)))
    finally:
        release.set()
    assert {each.status for each in others} == {"finished"}
    assert {each.messages()[2]["content"] for each in others} == {"nothing"}
    assert (stuck.status, "took longer than 0.2 s" in str(stuck.status_reason)) == ("failed", True)
    assert "did not answer within 0.2 s" in stuck.messages()[2]["content"]
    assert "was not run" in stuck.messages()[4]["content"]
    assert threading.get_ident() not in threads
    assert len(set(threads)) == 8  # made, reset and used in one thread for each


@pytest.mark.parametrize("method", ["reset", "observe", "close"])
@pytest.mark.parametrize("limits", [{"call_seconds": 0.01}, {"max_seconds": 0.3, "call_seconds": 0.6}])
async def test_a_world_that_swallows_its_cancellation_costs_its_own_episode_alone(
    method: str, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "GRACE_SECONDS", 0.05)
    freed = asyncio.Event()

    async def goes_on(self: object, *given: object) -> str:
        while not freed.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await freed.wait()
        return "an answer"

    world = type("World", (), {method: goes_on})
    trajectory = await play(scripted("I am done."), world, max_turns=1, **limits)
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
        ("from gavel.cli.interrupts import run_to_end\nrun_to_end(in_a_command(never()))", "never"),
    ],
)
def test_what_swallows_its_cancellation_keeps_no_process_or_command_and_is_named(code: str, named: str) -> None:
    command = [sys.executable, "-c", STUBBORN + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout == ("" if "in_a_command" in code else "1 StuckError StuckError\n")
    (warning,) = done.stderr.splitlines()  # those that had a deadline are told by their errors
    assert f"{named} went on when it was cancelled" in warning
    assert done.returncode == 0
