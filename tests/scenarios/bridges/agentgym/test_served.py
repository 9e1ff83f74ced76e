"""A scenario behind AgentGym's protocol: for clients as theirs are, and for Gavel elsewhere."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import gavel
from gavel.integrations.agentgym.scenario import agentgym
from gavel.integrations.agentgym.server import Environments, HeldError, Items
from gavel.llm.types import Message
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.library.returns_desk import Case
from gavel.scenarios.library.returns_desk import scenario as returns_desk
from gavel.scenarios.library.text_adventure import scenario as text_adventure
from gavel.scenarios.library.tic_tac_toe import scenario as tic_tac_toe
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import talker, tool_user
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.bridges.agentgym import agentgym_clients
from tests.scenarios.bridges.served_scenario import served


@pytest.fixture(scope="module")
def desk() -> Iterator[str]:
    with served(returns_desk) as url:
        yield url


def clerk(*, skip: str | None = None) -> FunctionModel:
    """Looks, reads, acts rightly by what it was told, and closes; without the step that is to be skipped."""

    async def reply(request: ChatRequest) -> Message:
        results = [json.loads(m["content"]) for m in request.messages if m["role"] == "tool" and m["content"][0] == "{"]
        said = sum(message["role"] == "assistant" for message in request.messages)
        order = next(re.findall(r"\d{4}", m["content"])[0] for m in request.messages if m["role"] == "user")
        facts = {name: value for each in results for name, value in each.items()}
        match said:
            case 0:
                return call(0, "look_up_order", order_id=order)
            case 1 if skip != "read_policy":
                return call(1, "read_policy", item=facts["item"])
            case 1 | 2 if not any(m["role"] == "tool" and order in m["content"] for m in request.messages):
                case = Case(order_id=order, **{"window": 30, "opened_ok": True, **facts})
                return call(said, case.right_action, order_id=order)
            case _:
                return {"content": "That is done."}

    return FunctionModel("clerk", reply)


def call(number: int, name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}


def saying(*replies: str | Message) -> FunctionModel:
    async def reply(request: ChatRequest) -> Message:
        said = sum(message["role"] == "assistant" for message in request.messages)
        chosen = replies[min(said, len(replies) - 1)]
        return {"content": chosen} if isinstance(chosen, str) else chosen

    return FunctionModel("script", reply)


def comparable(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "messages": trajectory.messages(),
        "tools": trajectory.tools,
        "status": trajectory.status,
        "reason": trajectory.status_reason,
        "turns": trajectory.metrics["turns"],
        "tool_errors": trajectory.metrics["tool_errors"],
    }


# --- mirrored -----------------------------------------------------------------------------------------------------

(REFUND,) = call(0, "refund", order_id="1")["tool_calls"]
TWO_CALLS = {"tool_calls": [*call(0, "refund", order_id="1")["tool_calls"], *call(1, "look_up_order")["tool_calls"]]}
AGENTS: dict[str, Callable[[], FunctionModel]] = {
    "careful": clerk,
    "hasty": lambda: clerk(skip="read_policy"),
    "tool user": tool_user,
    "talker": talker,
    "silent": lambda: saying(""),
    "endless": lambda: saying(call(0, "refund", order_id="1")),
    "unknown tool": lambda: saying(call(0, "refuse", order_id="1"), call(1, "refund", order_id="1"), "Sorry."),
    "no JSON": lambda: saying({"tool_calls": [{**REFUND, "function": {"name": "refund", "arguments": "{"}}]}, "x"),
    "two calls": lambda: saying(TWO_CALLS, "Done."),
    "same ids": lambda: saying({"tool_calls": [REFUND, REFUND]}, "x"),
}


@pytest.fixture(scope="module")
def mirror(desk: str) -> Scenario:
    return agentgym(desk)


def test_the_mirrored_scenario_has_the_name_words_and_tasks_of_the_served_one(mirror: Scenario) -> None:
    assert (mirror.name, mirror.system, mirror.rubric) == (returns_desk.name, returns_desk.system, returns_desk.rubric)
    for split in ("train", "held_out"):
        mine, theirs = mirror.tasks(split), returns_desk.tasks(split)
        assert len(mine) == len(theirs)
        assert [(task.id, task.user) for task in mine] == [(task.id, task.user) for task in theirs]
        assert all(task.data.keys() == {"served_item"} for task in mine)
    assert [task.id for task in mirror.sample("train", 8, seed=3, step=5)] == [
        task.id for task in returns_desk.sample("train", 8, seed=3, step=5)
    ]


@pytest.mark.parametrize("agent", AGENTS)
async def test_an_episode_over_the_wire_is_the_episode_in_process(agent: str, mirror: Scenario) -> None:
    for number in (0, 5, 11):
        here = await rollout(AGENTS[agent](), returns_desk, returns_desk.tasks()[number], seed=7)
        there = await rollout(AGENTS[agent](), mirror, mirror.tasks()[number], seed=7)
        assert comparable(there) == comparable(here)
        assert returns_desk.success is not None
        assert returns_desk.hand_reward is not None
        assert mirror.success is not None
        assert mirror.hand_reward is not None
        assert mirror.success(there) == returns_desk.success(here)
        assert mirror.hand_reward(there) == pytest.approx(returns_desk.hand_reward(here))
        for name, measure in returns_desk.measures.items():
            assert mirror.measures[name](there) == measure(here)
    assert (agent == "careful") == mirror.success(there)


async def test_a_turn_that_was_cut_off_is_cut_off_on_the_server_too(mirror: Scenario) -> None:
    from openai.types.chat.chat_completion import ChatCompletion

    async def reply(request: ChatRequest) -> ChatCompletion:
        choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "I would"}}
        return ChatCompletion.model_validate(
            {"id": "x", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]}
        )

    cut = await rollout(FunctionModel("cut", reply), mirror, mirror.tasks()[0])
    assert (cut.status, cut.status_reason) == ("truncated", "a turn reached its token limit")
    assert cut.metrics["success"] == 0.0


async def test_a_text_world_is_mirrored_too() -> None:
    agent = saying("look", "go north", "take key")
    with served(text_adventure) as url:
        mirror = agentgym(url)
        here = await rollout(agent, text_adventure, text_adventure.tasks()[3], seed=11)
        there = await rollout(agent, mirror, mirror.tasks()[3], seed=11)
    assert comparable(there) == comparable(here)
    assert {name: there.metrics[name] for name in here.metrics} == here.metrics


async def test_a_rollout_of_its_own_is_played_to_the_same_end() -> None:
    """Its system prompt stands at the head of the first message: no scenario has it."""
    with served(tic_tac_toe) as url:
        mirror = agentgym(url)
        here = await rollout(saying("5"), tic_tac_toe, tic_tac_toe.tasks("held_out")[1], seed=11)
        there = await rollout(saying("5"), mirror, mirror.tasks("held_out")[1], seed=11)
    assert there.messages()[1:] == here.messages()[2:]
    assert there.messages()[0]["content"] == "\n\n".join(each["content"] for each in here.messages()[:2])
    assert tic_tac_toe.success is not None
    assert mirror.success is not None
    assert mirror.success(there) == tic_tac_toe.success(here)


async def test_a_world_that_fails_on_the_server_fails_the_episode_here_with_the_reason() -> None:
    class Broken:
        async def observe(self, action: str) -> str:
            raise RuntimeError("the database is gone")

        def success(self, trajectory: Trajectory) -> bool:
            return False

    with served(Scenario("broken", environment=Broken, tasks=[Task(user="Hi.")], held_out=[])) as url:
        mirror = agentgym(url)
        lost = await rollout(saying("hello"), mirror, mirror.tasks()[0])
    assert lost.status == "failed"
    assert "the database is gone" in (lost.status_reason or "")
    assert "success" not in lost.metrics


async def test_a_scenario_without_success_is_mirrored_without_it() -> None:
    with served(Scenario("plain", tasks=[Task(user="Hi.")], held_out=[])) as url:
        mirror = agentgym(url)
        talked = await rollout(saying("Hello!"), mirror, mirror.tasks()[0])
    assert mirror.success is None
    assert mirror.hand_reward is None
    assert talked.status == "finished"
    assert [message["role"] for message in talked.messages()] == ["user", "assistant"]


async def test_sixty_four_episodes_at_once_do_not_disturb_one_another(mirror: Scenario) -> None:
    tasks = mirror.tasks()[:64]
    played = await asyncio.gather(*(rollout(clerk(), mirror, task, seed=1) for task in tasks))
    assert [each.metrics["success"] for each in played] == [1.0] * 64
    for task, each in zip(tasks, played, strict=True):
        assert task.id in each.messages()[-1]["content"] + json.dumps(each.messages())


# --- AgentGym's own clients ---------------------------------------------------------------------------------------


DRIVEN = [(each, form) for each in agentgym_clients.ALL for form in ("plain", "react json", "json")]
DRIVEN = [each for each in DRIVEN if each[0] is not agentgym_clients.TextCraft or each[1] == "plain"]
"""TextCraft's client takes the punctuation out of actions."""


@pytest.mark.parametrize(("client_class", "form"), DRIVEN)
def test_agentgym_s_clients_drive_a_scenario_with_tools(client_class: Any, form: str, desk: str) -> None:
    client = client_class(desk)
    for item in (2, 7200):
        client.reset(item)
        opening = client.observe()
        task = (returns_desk.tasks()[2], returns_desk.tasks("held_out")[7200 - len(returns_desk.tasks())])[item > 2]
        assert task.user in opening
        assert "look_up_order(order_id: string): Look up an order." in opening
        case = Case.model_validate(task.data)
        steps = [("look_up_order", "order_id", task.id), ("read_policy", "item", case.item)]
        steps.append((case.right_action, "order_id", task.id))
        for name, field, value in steps:
            arguments = json.dumps({field: value})
            text = {
                "plain": f"{name} {value}",
                "react json": f"{name} {arguments}",
                "json": json.dumps({"thought": "hm", "function_name": name, "arguments": {field: value}}),
            }[form]
            end = "" if client_class is agentgym_clients.TextCraft else "</s>"
            step = client.step(f"Thought: so.\n\nAction: {text}{end}")
            assert "error" not in step.state
            assert not step.done
            assert step.reward == 0
        assert task.id in step.state
        done = client.step("Thought: told.\n\nAction: finish done" if form == "plain" else "Answer: It is done.")
        assert (done.done, done.reward) == (True, 1.0)
    assert client.close() == {"closed": True}


def test_agentgym_s_clients_drive_a_text_world() -> None:
    with served(text_adventure) as url:
        client = agentgym_clients.SciWorld(url)
        client.reset(0)
        assert "Find the treasure." in client.observe()
        step = client.step("Thought: where am I?\nAction: look")
        assert "You are in the" in step.state
        assert not step.done


def test_an_action_that_cannot_be_read_is_answered_and_costs_no_turn(desk: str) -> None:
    client = agentgym_clients.BabyAI(desk)
    client.reset(0)
    for _ in range(20):
        step = client.step('{"name": "refund", "arguments": {')
        assert "not valid JSON" in step.state
        assert not step.done
    client.step("Action: refund 4711")
    assert client.step("Sorry.").done


# --- what clients do wrong ----------------------------------------------------------------------------------------


async def ask(url: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return await (client.get(path, **more) if body is None else client.post(path, json=body, **more))


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/step", {"id": 10_000, "action": "x"}, "not valid"),
        ("/step", {"action": "x"}, "not valid"),
        ("/step", {"id": "0", "action": "x"}, "not valid"),
        ("/step", {"id": True, "action": "x"}, "not valid"),
        ("/step", [1], "no JSON object"),
        ("/reset", {"id": 10_000, "data_idx": 0}, "not valid"),
        ("/close", {"id": None}, "not valid"),
        ("/observation?id=x", None, "no whole number"),
        ("/detail?id=99999", None, "not valid"),
        ("/tasks?start=a", None, "no whole number"),
    ],
)
async def test_a_wrong_request_is_answered_with_an_error(path: str, body: Any, told: str, desk: str) -> None:
    answer = await ask(desk, path, body)
    assert answer.status_code == 200
    assert told in answer.json()["error"]


async def test_wrong_requests_about_an_environment_leave_it_usable(desk: str) -> None:
    number = (await ask(desk, "/create", {})).json()["id"]
    assert "not initialized" in (await ask(desk, "/step", {"id": number, "action": "x"})).json()["error"]
    assert "no item 99999" in (await ask(desk, "/reset", {"id": number, "data_idx": 99999})).json()["error"]
    assert "no whole number" in (await ask(desk, "/reset", {"id": number, "data_idx": "x"})).json()["error"]
    first = (await ask(desk, "/reset", {"id": number, "data_idx": 0})).json()
    assert (await ask(desk, f"/observation?id={number}")).json() == first["observation"]
    assert "a step is" in (await ask(desk, "/step", {"id": number, "action": 3})).json()["error"]
    assert "an action is a text" in (await ask(desk, "/step", {"id": number, "action": {"a": 1}})).json()["error"]
    bad = {"role": "assistant", "tool_calls": [3]}
    assert "OpenAI's form" in (await ask(desk, "/step", {"id": number, "message": bad})).json()["error"]
    over = (await ask(desk, "/step", {"id": number, "action": "No."})).json()
    assert (over["done"], over["reward"], over["status"]) == (True, 0.0, "finished")
    assert "has finished" in (await ask(desk, "/step", {"id": number, "action": "x"})).json()["error"]
    assert not (await ask(desk, "/reset", {"id": number, "data_idx": 1})).json()["done"]


async def test_two_steps_at_once_are_not_both_taken() -> None:
    class Slow:
        async def observe(self, action: str) -> str:
            await asyncio.sleep(0.5)
            return action

    with served(Scenario("slow", environment=Slow, tasks=[Task(user="Hi.")], held_out=[])) as url:
        number = (await ask(url, "/create", {})).json()["id"]
        await ask(url, "/reset", {"id": number})
        answers = await asyncio.gather(*(ask(url, "/step", {"id": number, "action": str(n)}) for n in range(2)))
    assert sorted("error" in each.json() for each in answers) == [False, True]


async def test_an_environment_that_is_closed_in_a_step_answers_that_it_is() -> None:
    class Waiting:
        async def observe(self, action: str) -> str:
            await asyncio.sleep(60)
            return action

    with served(Scenario("waiting", environment=Waiting, tasks=[Task(user="Hi.")], held_out=[])) as url:
        number = (await ask(url, "/create", {})).json()["id"]
        await ask(url, "/reset", {"id": number})
        step = asyncio.create_task(ask(url, "/step", {"id": number, "action": "x"}))
        await asyncio.sleep(0.2)
        assert "at once" in (await ask(url, "/step", {"id": number, "action": "y"})).json()["error"]
        assert (await ask(url, "/close", {"id": number})).json() == {"closed": True}
        assert "not valid" in (await step).json()["error"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"\xff\xfe{", "application/json"), (b"{}", "application/json; charset=klingon"), (b"[" * 100_000, "text/plain")],
)
async def test_a_body_that_is_no_json_is_told(content: bytes, kind: str, desk: str) -> None:
    async with httpx.AsyncClient(base_url=desk, trust_env=False) as client:
        answer = await client.post("/step", content=content, headers={"Content-Type": kind})
        assert "no JSON" in answer.json()["error"]
        assert (await client.post("/step", content=b"x" * 2_000_000)).status_code == 413


async def test_the_number_of_environments_is_bounded() -> None:
    with served(returns_desk, most=2) as url:
        first, _ = [(await ask(url, "/create", {})).json()["id"] for _ in range(2)]
        full = await ask(url, "/create", {})
        assert full.status_code == 503
        assert "2 environments are open" in full.json()["error"]
        await ask(url, "/close", {"id": first})
        assert (await ask(url, "/create", {})).json()["id"] not in (first, first + 1)
        assert "expired" in (await ask(url, "/reset", {"id": first})).json()["error"]


async def test_what_nobody_asks_for_is_ended_and_what_is_asked_for_stays() -> None:
    environments = Environments(Items.of(returns_desk), most=3, idle_seconds=600)
    idle, busy, used = (environments.create() for _ in range(3))
    await environments.reset(idle, 0)
    idle.used -= 601
    busy.used -= 601
    busy.busy = True
    await environments.close_idle()
    assert len(environments) == 2
    with pytest.raises(HeldError, match="expired"):
        environments.find(idle.number)
    assert environments.find(busy.number) is busy
    assert environments.find(used.number) is used
    await environments.close_all()
    assert not len(environments)


async def test_a_key_is_asked_for_and_the_bridge_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(returns_desk, key="secret") as url:
        assert (await ask(url, "/create", {})).status_code == 401
        assert (await ask(url, "/create", {}, headers={"Authorization": b"Bearer \xe9\xff"})).status_code == 401
        assert (await ask(url, "/", headers={"Authorization": "Bearer secret"})).status_code == 200
        with pytest.raises(gavel.GavelError, match="another key") as error:
            agentgym(url)
        assert "GAVEL_ENV_KEY" in error.value.remedy
        monkeypatch.setenv("GAVEL_ENV_KEY", "secret")
        mirror = agentgym(url)
        assert (await rollout(clerk(), mirror, mirror.tasks()[0])).metrics["success"] == 1.0


async def test_without_a_key_pages_of_other_sites_are_refused(desk: str) -> None:
    assert (await ask(desk, "/", headers={"Host": "evil.example"})).status_code == 403
    assert (await ask(desk, "/create", {}, headers={"Origin": "http://evil.example"})).status_code == 403
    assert (await ask(desk, "/")).json()["scenario"] == "returns_desk"


async def test_the_hidden_state_of_a_task_is_not_told(desk: str) -> None:
    tasks = (await ask(desk, "/tasks", params={"start": 0, "stop": 5000})).json()
    assert len(tasks) == 1000
    assert {name for task in tasks for name in task} == {"id", "user", "item"}
