"""Worlds with a state: one for each episode, always closed, and what they do wrong stays within their episode."""

import asyncio
import functools
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from gavel.llm.types import Message
from gavel.scenarios import environment as environments
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.environment import not_a_tool, tools_of
from gavel.scenarios.episode import Episode
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import ToolDefinitionError, done
from gavel.scenarios.trajectory import Trajectory
from tests.limits import HANG_SECONDS

TASK = Task(user="Fill the box.", data={"wanted": 3})


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


def calls(*steps: tuple[str, dict[str, Any]] | str) -> FunctionModel:
    """An agent that makes one call, or says one thing, in each turn."""

    async def reply(request: ChatRequest) -> Message:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        step = steps[min(turn, len(steps) - 1)]
        if isinstance(step, str):
            return {"content": step}
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        return {"tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}

    return FunctionModel("script", reply)


def scenario(environment: Any = Box, **options: Any) -> Scenario:
    return Scenario("boxes", environment=environment, tasks=[TASK], held_out=0, **options)


async def play(model: FunctionModel, environment: Any = Box, seed: int | None = 1, **options: Any) -> Trajectory:
    return await rollout(model, scenario(environment, **options), TASK, seed=seed)


def test_tools_are_the_public_documented_methods():
    assert {tool.name for tool in tools_of(Box)} == {"put", "look", "size", "seal"}
    (put,) = (tool.schema["function"] for tool in tools_of(Box) if tool.name == "put")
    assert put["parameters"]["required"] == ["amount"]


def test_a_documented_method_without_types_is_refused_when_the_scenario_is_made():
    class Loose:
        def put(self, amount):
            """Put something in."""

    with pytest.raises(ToolDefinitionError, match="amount"):
        scenario(Loose)


async def test_an_episode_acts_on_its_own_world_and_closes_it():
    Box.made.clear()
    episode = await play(calls(("put", {"amount": 3}), ("look", {}), "Done."))
    assert episode.status == "finished"
    assert episode.metrics["success"] == 1
    assert episode.metrics["environment_reward"] == 0.3
    (box,) = Box.made
    assert box.is_closed
    assert episode.messages()[0] == {
        "role": "user",
        "content": f"Fill the box.\n\nThe box is empty. Your number is {box.lucky}.",
    }
    assert json.loads(episode.messages()[4]["content"]) == {"content": 3, "turns": 2, "task": "Fill the box."}
    made = scenario()
    assert made.success is not None
    assert made.success(episode) == 1
    assert made.hand_reward is not None
    assert made.hand_reward(episode) == 0.3


async def test_a_world_behind_partial_says_its_outcome_too():
    made = scenario(functools.partial(Box))
    episode = await rollout(calls(("put", {"amount": 3}), "Done."), made, TASK)
    assert made.success is not None
    assert made.success(episode) == 1


async def test_a_tool_may_end_the_episode():
    episode = await play(calls(("seal", {})))
    assert episode.metrics["turns"] == 1
    assert episode.messages()[-1]["content"] == "sealed"


async def test_the_world_s_chance_is_that_of_the_seed():
    first, again, other = [(await play(calls("Done."), seed=seed)).messages()[0] for seed in (1, 1, 2)]
    assert first == again != other


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
    episode = await play(calls("go"), functools.partial(Story, ending))
    assert episode.status == "finished"
    assert [message["role"] for message in episode.messages()][:5] == ["user", "assistant"] * 2 + ["user"]
    assert episode.messages()[2]["content"] == '{"room": 1}'
    assert episode.messages()[-1]["content"] == last
    assert episode.metrics["turns"] == 3


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_turns": 2}, "2 turns were used up"),
        ({"max_steps": 1}, "1 steps of the world were used up"),
    ],
)
async def test_an_episode_is_truncated_by_its_limits(options: dict[str, Any], reason: str):
    episode = await play(calls(("put", {"amount": 1})), **options)
    assert episode.status == "truncated"
    assert episode.status_reason == reason
    assert episode.metrics["success"] == 0


def broken(method: str, error: Callable[[], Any]) -> type:
    """A world one of whose methods fails."""

    async def fails(self: Any, *arguments: Any) -> Any:
        return await error()

    return type("Broken", (Box,), {method: fails})


async def _raises() -> None:
    raise OSError("out of order")


async def _hangs() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("method", ["reset", "observe", "success", "reward"])
@pytest.mark.parametrize(("how", "reason"), [(_raises, "OSError: out of order"), (_hangs, "took longer than 0.05 s")])
async def test_a_world_that_fails_costs_its_own_episode(method: str, how: Callable[[], Any], reason: str):
    Box.made.clear()
    failed, well = await asyncio.gather(
        play(calls("Done."), broken(method, how), call_seconds=0.05), play(calls(("put", {"amount": 3}), "Done."))
    )
    assert failed.status == "failed"
    assert failed.status_reason is not None
    assert reason in failed.status_reason
    assert well.metrics["success"] == 1
    assert all(box.is_closed for box in Box.made)


async def test_a_world_that_cannot_be_made_fails_its_episode():
    failed = await play(calls("Done."), lambda: 1 / 0)
    assert failed.status == "failed"
    assert "ZeroDivisionError" in (failed.status_reason or "")


async def test_a_world_that_is_made_after_its_deadline_is_closed_all_the_same():
    go_on, closed = threading.Event(), threading.Event()

    class Late:
        def __init__(self) -> None:
            go_on.wait(HANG_SECONDS)

        def close(self) -> None:
            closed.set()

    episode = await play(calls("Done."), Late, call_seconds=0.05)
    assert "to be made" in (episode.status_reason or "")
    go_on.set()
    assert await asyncio.to_thread(closed.wait, HANG_SECONDS)


async def test_a_tool_that_hangs_is_a_tool_error():
    class Slow(Box):
        async def wait(self) -> str:
            """Wait."""
            await asyncio.sleep(60)
            return ""

    episode = await play(calls(("wait", {}), "Done."), Slow, call_seconds=0.05)
    assert "did not answer within 0.05 s" in episode.messages()[2]["content"]
    assert episode.metrics["tool_errors"] == 1
    assert episode.status == "finished"


async def test_an_episode_that_takes_too_long_is_truncated_and_measured():
    class Slow(Box):
        async def wait(self) -> str:
            """Wait."""
            await asyncio.sleep(60)
            return ""

    episode = await play(calls(("put", {"amount": 3}), ("wait", {})), Slow, max_seconds=0.2)
    assert episode.status == "truncated"
    assert episode.status_reason == "the episode took longer than 0.2 s"
    assert episode.metrics["success"] == 1


@pytest.mark.parametrize("how", [_raises, _hangs])
async def test_a_world_that_cannot_be_closed_is_told_in_the_logs(how: Callable[[], Any], monkeypatch: Any):
    monkeypatch.setattr(environments, "CLOSE_SECONDS", 0.05)
    episode = await play(calls(("put", {"amount": 3}), "Done."), broken("close", how))
    assert episode.status == "finished"
    assert episode.metrics["success"] == 1
    assert episode.logs[0].startswith("the environment was not closed: close")


async def test_a_cancelled_episode_closes_its_world():
    Box.made.clear()
    started = asyncio.Event()

    async def reply(request: ChatRequest) -> Message:
        started.set()
        await asyncio.sleep(60)
        return {}

    task = asyncio.create_task(play(FunctionModel("slow", reply)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Box.made[0].is_closed


async def test_tools_stand_beside_those_of_the_world_and_two_of_a_name_are_told():
    def weigh(what: str) -> int:
        """Weigh something."""
        return 5

    def put(amount: int) -> int:
        """Another one."""
        return amount

    episode = await play(calls(("weigh", {"what": "box"}), "Done."), tools=[weigh])
    assert episode.messages()[2]["content"] == "5"
    twice = await play(calls("Done."), tools=[put])
    assert twice.status == "failed"
    assert "two tools of an episode are called put" in (twice.status_reason or "")


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot say what it is")


def _raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError(), _Mute(), TimeoutError("mine")], ids=repr)
@pytest.mark.parametrize("method", ["reset", "observe", "success"])
async def test_whatever_a_world_raises_makes_its_own_episode_failed(method: str, error: BaseException):
    kind = type("Bad", (), {method: _raising(error)})
    episode = await play(calls("Hello."), kind)
    assert episode.status == "failed"
    told = "cancelled from within" if isinstance(error, asyncio.CancelledError) else type(error).__name__
    assert told in (episode.status_reason or "")


@pytest.mark.parametrize("value", [_CIRCLE, object(), b"a picture"], ids=["circle", "object", "bytes"])
@pytest.mark.parametrize("method", ["reset", "observe"])
async def test_an_observation_that_cannot_be_shown_fails_the_episode(method: str, value: object):
    episode = await play(calls("Hello."), type("Bad", (), {method: lambda *_: value}))
    assert episode.status == "failed"
    assert f"{method} of the environment" in (episode.status_reason or "")


@pytest.mark.parametrize(
    ("method", "value"), [("success", float("nan")), ("success", 7), ("reward", float("inf")), ("success", object())]
)
async def test_an_outcome_that_is_no_usable_number_fails_the_episode(method: str, value: object):
    episode = await play(calls("Hello."), type("Bad", (), {method: lambda *_: value}))
    assert episode.status == "failed"
    assert f"{method} of the environment" in (episode.status_reason or "")


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError(), _Mute()], ids=repr)
async def test_whatever_a_tool_raises_is_a_tool_error(error: BaseException):
    class Bad:
        def put(self) -> None:
            """Put something in."""
            raise error

    episode = await play(calls(("put", {}), "Done."), Bad)
    assert episode.status == "finished"
    assert episode.metrics["tool_errors"] == 1


def test_a_static_method_can_be_left_out_whichever_decorator_stands_first():
    class Some:
        @not_a_tool
        @staticmethod
        def first() -> None:
            """First."""

        @staticmethod
        @not_a_tool
        def second() -> None:
            """Second."""

    assert list(tools_of(Some)) == []


class Cabinet:
    """Tools of every kind that a class can have."""

    prefix = "drawer"

    @classmethod
    def label(cls, number: int) -> str:
        """The label of a drawer."""
        return f"{cls.prefix} {number}"

    @staticmethod
    def half(number: int) -> float:
        """Half of a number."""
        return number / 2

    @functools.lru_cache  # noqa: B019 a user's way to write it
    def opened(self, number: int) -> str:
        """Open a drawer."""
        return f"open {number} of {type(self).__name__}"

    @not_a_tool
    @classmethod
    def hidden(cls) -> str:
        """No tool."""
        return ""

    @not_a_tool
    @functools.lru_cache  # noqa: B019 a user's way to write it
    def hidden_too(self) -> str:
        """No tool."""
        return ""

    @functools.lru_cache  # noqa: B019 a user's way to write it
    @not_a_tool
    def hidden_as_well(self) -> str:
        """No tool."""
        return ""


async def test_class_methods_static_methods_and_cached_methods_are_tools():
    tools = {tool.name: tool for tool in tools_of(Cabinet)}
    assert list(tools) == ["label", "half", "opened"]
    said = [(await tools[name].call('{"number": 3}', environment=Cabinet())).content for name in tools]
    assert said == ["drawer 3", "1.5", "open 3 of Cabinet"]
    assert all("cls" not in str(tool.schema) and "self" not in str(tool.schema) for tool in tools.values())


@pytest.mark.parametrize("where", ["reset", "look", "observe", "success"])
async def test_a_world_that_cancels_its_own_task_costs_its_own_episode(where: str):
    closed: list[bool] = []

    def give_up(method: str) -> None:
        task = asyncio.current_task()
        if method == where and task is not None:
            task.cancel()

    class Quitter:
        async def reset(self, task: Task) -> None:
            give_up("reset")

        async def look(self) -> str:
            """Look."""
            give_up("look")
            return "dark"

        async def observe(self, action: str) -> None:
            give_up("observe")

        async def success(self, trajectory: Trajectory) -> bool:
            give_up("success")
            await asyncio.sleep(0)
            return True

        async def close(self) -> None:
            closed.append(True)

    async def play(request: ChatRequest) -> Message:
        await asyncio.sleep(0)
        if any(message["role"] == "tool" for message in request.messages):
            return {"content": "Done."}
        return {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}

    scenario = Scenario("quitter", environment=Quitter, tasks=[Task(user="Look.")], held_out=0)
    played = await asyncio.gather(*(rollout(FunctionModel("s", play), scenario, scenario.tasks()[0]) for _ in range(3)))
    assert {each.status for each in played} == {"failed"}
    assert {each.status_reason for each in played} == {"the episode was cancelled from within"}
    assert len(closed) == 3


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

        def success(self, trajectory: Trajectory) -> bool:
            return True

    agent = calls(("look", {}), "I am done.")
    world = scenario(Plain, call_seconds=0.2)
    try:
        stuck, *others = await asyncio.gather(*(rollout(agent, world, TASK, seed=seed) for seed in range(8)))
    finally:
        release.set()
    assert {each.status for each in others} == {"finished"}
    assert {each.messages()[2]["content"] for each in others} == {"nothing"}
    assert (stuck.status, "took longer than 0.2 s" in str(stuck.status_reason)) == ("failed", True)
    assert "did not answer within 0.2 s" in stuck.messages()[2]["content"]
    assert threading.get_ident() not in threads
    assert len(set(threads)) == 8  # made, reset and used in one thread for each


async def test_a_tool_behind_one_that_hangs_is_told_not_to_have_run():
    release = threading.Event()

    class Desk:
        def look(self) -> str:
            """Look."""
            return str(release.wait(HANG_SECONDS))

        def refund(self) -> str:
            """Refund."""
            return "refunded"

    try:
        episode = await play(calls(("look", {}), ("refund", {}), "Done."), Desk, call_seconds=0.2)
    finally:
        release.set()
    assert "did not answer" in episode.messages()[2]["content"]
    assert "was not run" in episode.messages()[4]["content"]


async def test_a_world_with_asynchronous_methods_stays_in_one_thread():
    threads = []

    class Mixed:
        async def reset(self, task: Task) -> None:
            threads.append(threading.get_ident())

        def look(self) -> str:
            """Look."""
            threads.append(threading.get_ident())
            return "nothing"

    assert (await play(calls(("look", {}), "I am done."), Mixed)).status == "finished"
    assert set(threads) == {threading.get_ident()}


async def test_a_plain_world_may_hold_what_belongs_to_its_thread():
    class Books:
        def __init__(self) -> None:
            self.rows = sqlite3.connect(":memory:")

        def count(self) -> int:
            """Count."""
            return self.rows.execute("select 7").fetchone()[0]

        def success(self, trajectory: Trajectory) -> bool:
            return self.count() == 7

        def close(self) -> None:
            self.rows.close()

    episode = await play(calls(("count", {}), "I am done."), Books)
    assert (episode.messages()[2]["content"], episode.metrics["success"], episode.logs) == ("7", 1.0, [])


class Blocking:
    def plain(self) -> int:
        """Wait."""
        time.sleep(0.02)
        return 1

    async def asynchronous(self) -> int:
        """Wait."""
        await asyncio.sleep(0)
        time.sleep(0.02)  # noqa: ASYNC251
        return 1


@pytest.mark.parametrize("name", ["plain", "asynchronous"])
async def test_a_method_that_holds_up_the_others_is_named_once_and_answers_too_late(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("gavel.scenarios.deadline.HELD_SECONDS", 0.01)
    monkeypatch.setattr("gavel.scenarios.deadline._warned", set[str]())
    tool = next(tool for tool in tools_of(Blocking) if tool.name == name)
    results = [await tool.call("", environment=Blocking(), on_loop=True, seconds=seconds) for seconds in (None, 0.01)]
    assert [result.error for result in results] == [False, True]
    assert f"{name} did not answer within 0.01 s" in results[1].content
    assert [record.getMessage().partition(" took")[0] for record in caplog.records] == [f"the tool {name}"]


class Unreadable:
    def __getattr__(self, name: str) -> Any:
        return self.__dict__["inner"][name]


async def test_a_world_whose_attributes_cannot_be_read_fails_its_episode():
    episode = await play(calls("Hello."), Unreadable)
    assert (episode.status, episode.status_reason) == (
        "failed",
        "reset of the environment cannot be read: KeyError: 'inner'",
    )
    assert "KeyError" in episode.logs[-1]  # of close


class Fatal(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("where", ["reset", "look", "success", "close"])
@pytest.mark.parametrize("plain", [False, True])
async def test_an_exception_that_is_none_of_pythons_costs_its_own_episode_alone(where: str, plain: bool):
    def fail(self: Any, trajectory: Trajectory | None = None) -> float:
        """Look."""
        if self.seed == 0:
            raise Fatal("all is lost")
        return 1.0

    def note(self: Any, episode: Episode) -> None:
        self.seed = episode.seed
        if where == "reset":
            fail(self)

    async def wait(self: Any) -> None:
        """Wait."""

    fail.__name__ = where  # of a tool, what the agent calls it
    methods = {"reset": note, **({} if where == "reset" else {where: fail}), **({} if plain else {"wait": wait})}
    world = scenario(type("World", (), methods))
    agent = calls(("look", {}), "I am done.")
    hurt, *others = await asyncio.gather(*(rollout(agent, world, TASK, seed=seed) for seed in range(4)))
    assert {each.status for each in others} == {"finished"}
    told = [hurt.status_reason, *hurt.logs, *hurt.messages()]
    assert any("Fatal: all is lost" in str(each) for each in told)
    assert hurt.status == ("failed" if where in ("reset", "success") else "finished")


async def test_a_success_that_takes_messages_away_takes_none_from_the_episode():
    class Popping(Box):
        def success(self, trajectory: Trajectory) -> bool:
            return trajectory.messages_and_choices.pop() is not None

    episode = await play(calls("Done."), Popping)
    assert episode.messages()[-1]["content"] == "Done."
    assert episode.metrics["success"] == 1
