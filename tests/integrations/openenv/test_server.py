"""A scenario served over OpenEnv's protocol, and played by another Gavel."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gavel.integrations.openenv.server import OpenEnvService
from gavel.scenarios.environment import WorldError
from gavel.scenarios.episode import Episode
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import Criterion
from tests.integrations.openenv.players import call, calls, script
from tests.integrations.openenv.served import running

DESK = find_scenario("returns_desk")
TASK = DESK.tasks()[0]


async def scenario_of(url: str, query: str = "") -> Scenario:
    return await asyncio.to_thread(find_scenario, f"openenv:{url}{query}")


def right_turns(task: Task, action: str) -> list[Any]:
    order = str(task.data["order_id"])
    return [
        call("look_up_order", 0, order_id=order),
        call("read_policy", 1, item=task.data["item"]),
        call(action, 2, order_id=order),
        {"content": "It is done."},
    ]


SCRIPTS = {
    "refunds": lambda task: right_turns(task, "refund"),
    "denies": lambda task: right_turns(task, "deny"),
    "only talks": lambda task: [{"content": "No."}],
    "several calls in a turn": lambda task: [
        calls(("look_up_order", f'{{"order_id": "{task.data["order_id"]}"}}'), ("read_policy", '{"item": "nothing"}')),
        {"content": "Bye."},
    ],
    "bad calls": lambda task: [
        calls(("look_up_order", "{"), ("look_up_order", '{"order": 3}'), ("steal", "{}")),
        calls(("steal", "{}"), first=1),
        {"content": "Sorry."},
    ],
    "only unknown tools": lambda task: [calls(("steal", "{}"), first=i) for i in range(6)],
    "runs out of turns": lambda task: [call("look_up_order", i, order_id="1") for i in range(6)],
}


@pytest.mark.parametrize("kind", SCRIPTS)
async def test_another_gavel_plays_it_by_its_tools_and_in_words(kind: str):
    async with running(OpenEnvService(DESK).app()) as url:
        served = await scenario_of(url, "?tasks=40&held_out=40")
        assert served.system == DESK.system
        for split in ("train", "held_out"):
            for task, own in zip(served.tasks(split)[:3], DESK.tasks(split)[:3], strict=True):
                assert (task.id, task.rubric) == (own.id, DESK.rubric)
                model = script(SCRIPTS[kind](own))
                inside = await rollout(model, DESK, own, seed=5)
                outside = await rollout(model, served, task, seed=5)
                assert outside.messages() == inside.messages()
                assert outside.tools == inside.tools
                assert served.hand_reward is not None
                assert DESK.hand_reward is not None
                assert served.hand_reward(outside) == pytest.approx(DESK.hand_reward(inside))


async def test_what_only_the_world_may_know_is_never_sent():
    secret = Task(
        id="a", user="Go.", data={"code": "swordfish"}, rubric="Be kind.", criteria=[Criterion("tone", "Kind.")]
    )
    vault = Scenario("vault", tools=[], tasks=[secret], held_out=[], rubric="Open it.")
    async with running(OpenEnvService(vault).app()) as url, aiohttp.ClientSession(url) as client:
        served = await scenario_of(url)
        (task,) = served.tasks()
        assert task.truth == secret.truth
        said = ""
        for path in ("/schema", "/metadata", "/vault/splits"):
            said += await (await client.get(path)).text()
        said += await (await client.post("/vault/tasks", json={"split": "train"})).text()
        async with client.ws_connect("/ws") as socket:
            await socket.send_json({"type": "reset", "data": {}})
            said += (await socket.receive()).data
            await socket.send_json({"type": "state"})
            said += (await socket.receive()).data
        assert "Be kind." in said
        assert "swordfish" not in said


class Lift:
    """A world with tools, words, chance and an end."""

    async def reset(self, task: Task, episode: Episode) -> str:
        self.floor = episode.random.randint(1, 5)
        return f"You are on floor {self.floor}."

    async def go(self, to: int) -> Any:
        """Go to a floor."""
        if to == 13:
            raise WorldError("the cable broke")
        self.floor = to
        return done("Out.") if to == 0 else f"Floor {to}."

    async def observe(self, action: str) -> str | None:
        return None if action == "stay" else f"The lift hears: {action}"

    def success(self, trajectory: Trajectory) -> bool:
        return self.floor == 0


LIFT = Scenario("lift", system="A lift.", environment=Lift, tasks=[Task(user="Leave the house.")], held_out=[])


@pytest.mark.parametrize(
    "turns",
    [
        [call("go", to=3), {"content": "hello"}, call("go", 1, to=0)],
        [{"content": "hello"}, {"content": "stay"}],
        [calls(("go", '{"to": 2}'), ("go", '{"to": 0}'))],
        [call("go", to=i) for i in range(1, 9)],
    ],
)
async def test_a_world_s_words_chance_and_end_are_the_same(turns: list[Any]):
    async with running(OpenEnvService(LIFT).app()) as url:
        served = await scenario_of(url)
        for seed in (1, 2, 3):
            inside = await rollout(script(turns), LIFT, LIFT.tasks()[0], seed=seed)
            outside = await rollout(script(turns), served, served.tasks()[0], seed=seed)
            # One message in process holds the task's text and the observation, here too.
            assert outside.messages() == inside.messages()
            assert outside.metrics["environment_reward"] == inside.metrics["success"]


async def test_an_episode_that_fails_there_fails_here():
    class Broken(Lift):
        async def observe(self, action: str) -> str | None:
            raise OSError("the cable broke")

    broken = Scenario("broken", environment=Broken, tasks=[Task(user="Leave.")], held_out=[])
    async with running(OpenEnvService(broken).app()) as url:
        served = await scenario_of(url)
        found = await rollout(script([{"content": "up"}]), served, served.tasks()[0])
    assert found.status == "failed"
    assert "the cable broke" in (found.status_reason or "")


async def test_64_episodes_at_once_do_not_meet():
    async with running(OpenEnvService(DESK, sessions=16).app()) as url:
        served = await scenario_of(url, "?tasks=64")
        own = {task.id: task for task in DESK.tasks()[:64]}

        async def attempt(task: Task) -> bool:
            found = await rollout(script(right_turns(own[task.id], "refund")), served, task, seed=1)
            assert found.status == "finished", found.status_reason
            return str(own[task.id].data["item"]) in str(found.messages())

        assert all(await asyncio.gather(*(attempt(task) for task in served.tasks())))


async def ask(socket: aiohttp.ClientWebSocketResponse, kind: str, data: Any = None) -> dict[str, Any]:
    await socket.send_json({"type": kind} if data is None else {"type": kind, "data": data})
    return json.loads((await socket.receive(timeout=20)).data)


@asynccontextmanager
async def session() -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
    app = OpenEnvService(DESK).app()
    async with running(app) as url, aiohttp.ClientSession(url) as client, client.ws_connect("/ws") as socket:
        yield socket


async def test_the_reward_comes_with_the_last_observation():
    async with session() as socket:
        first = await ask(socket, "reset", {"task_id": TASK.id, "episode_id": "mine"})
        assert TASK.user in first["data"]["observation"]["text"]
        assert first["data"]["done"] is False
        order = {"order_id": TASK.data["order_id"]}
        looked = await ask(socket, "step", {"type": "call_tool", "tool_name": "look_up_order", "arguments": order})
        assert looked["data"]["reward"] is None
        assert str(TASK.data["item"]) in looked["data"]["observation"]["result"]["data"]
        assert (await ask(socket, "state"))["data"]["episode_id"] == "mine"
        last = await ask(socket, "step", {"type": "message", "content": "Goodbye."})
        assert last["data"]["done"] is True
        assert last["data"]["reward"] == 0.0
        assert last["data"]["metadata"]["success"] == 0.0
        again = await ask(socket, "reset", {"split": "test", "index": 0})
        assert DESK.tasks("held_out")[0].user in again["data"]["observation"]["text"]


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("step", {"type": "message", "content": "Hi."}, "EXECUTION_ERROR"),
        ("reset", {"index": 10**9}, "EXECUTION_ERROR"),
        ("reset", {"task_id": "nobody"}, "EXECUTION_ERROR"),
        ("reset", {"split": "secret"}, "VALIDATION_ERROR"),
        ("step", {"type": "dance"}, "VALIDATION_ERROR"),
        ("step", {"type": "turn", "message": {"tool_calls": "x"}}, "EXECUTION_ERROR"),
        ("jump", {}, "UNKNOWN_TYPE"),
    ],
)
async def test_what_a_client_does_wrong_is_told_and_its_session_goes_on(kind: str, data: Any, code: str):
    async with session() as socket:
        assert (await ask(socket, kind, data))["data"]["code"] == code
        assert (await ask(socket, "reset", {"seed": 3}))["type"] == "observation"
        if kind == "step":
            assert (await ask(socket, kind, data))["type"] in ("error", "observation")
            assert (await ask(socket, "reset", {}))["type"] == "observation"


async def test_a_server_that_is_full_says_so_and_frees_what_is_left():
    class Counted(Lift):
        is_closed = asyncio.Event()

        async def close(self) -> None:
            self.is_closed.set()

    lift = Scenario("lift", environment=Counted, tasks=[Task(user="Leave.")], held_out=[])
    async with running(OpenEnvService(lift, sessions=1).app()) as url, aiohttp.ClientSession(url) as client:
        async with client.ws_connect("/ws") as one:
            await ask(one, "reset", {})
            async with client.ws_connect("/ws") as two:
                refused = json.loads((await two.receive(timeout=20)).data)
                assert refused["data"]["code"] == "CAPACITY_REACHED"
                assert refused["data"]["max_sessions"] == 1
        await asyncio.wait_for(Counted.is_closed.wait(), 20)
        async with client.ws_connect("/ws") as three:
            assert (await ask(three, "reset", {}))["type"] == "observation"


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
async def test_without_a_key_pages_of_other_sites_are_refused(headers: dict[str, str]):
    async with running(OpenEnvService(DESK).app()) as url, aiohttp.ClientSession(url) as client:
        assert [(await client.get(path, headers=headers)).status for path in ("/schema", "/ws")] == [403, 403]
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.ws_connect("/ws", headers=headers)


async def test_a_key_is_needed_where_one_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DESK_KEY", "open sesame")
    async with running(OpenEnvService(DESK, key="open sesame").app()) as url, aiohttp.ClientSession(url) as client:
        for path, status in (("/health", 200), ("/schema", 401), ("/ws", 401)):
            assert (await client.get(path)).status == status
        assert (await client.get("/schema", headers={"Authorization": "Bearer \udce9"})).status == 401
        served = await scenario_of(url, "?token=DESK_KEY&tasks=5")
        found = await rollout(script([{"content": "No."}]), served, served.tasks()[0])
        assert found.status == "finished"
