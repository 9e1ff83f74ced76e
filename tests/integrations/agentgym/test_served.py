"""A scenario behind AgentGym's protocol: for clients as theirs are, and for Gavel elsewhere."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

import gavel
from gavel.integrations.agentgym.scenario import agentgym
from gavel.integrations.agentgym.server import create_app
from gavel.scenarios.library.returns_desk import Case
from gavel.scenarios.library.returns_desk import scenario as returns_desk
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from tests.integrations.agentgym import agentgym_clients
from tests.integrations.served import in_a_thread
from tests.scenarios.scripts import scripted


def served(scenario: Scenario, **options: Any) -> AbstractContextManager[str]:
    return in_a_thread(create_app(scenario, **options))


@pytest.fixture(scope="module")
def desk() -> Iterator[str]:
    with served(returns_desk) as url:
        yield url


FORMS = {
    "plain": "{name} {value}",
    "ReAct with JSON": '{name} {{"{field}": "{value}"}}',
    "JSON": '{{"thought": "hm", "function_name": "{name}", "arguments": {{"{field}": "{value}"}}}}',
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", agentgym_clients.ALL)
def test_agentgym_s_clients_drive_a_scenario_with_tools(kind: str, form: str, desk: str) -> None:
    client = agentgym_clients.ALL[kind](desk)
    if form != "plain" and client.strips:  # nothing of an object is left: refused, with the form that survives
        client.reset(2)
        step = client.step(f"Action: {FORMS[form].format(name='look_up_order', field='order_id', value='1003')}")
        assert ("`Action: look_up_order " in step.state, step.done) == (True, False)
        return
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
            step = client.step(f"Thought: so.\n\nAction: {FORMS[form].format(name=name, field=field, value=value)}")
            assert "error" not in step.state
            assert not step.done
            assert step.reward == 0
        assert task.id in step.state
        done = client.step("Thought: told.\n\nAction: finish done")
        assert (done.done, done.reward) == (True, 1.0)
    assert client.close() == {"closed": True}


async def test_the_bridge_plays_what_is_served(desk: str) -> None:
    scenario = agentgym(desk)
    for split in ("train", "held_out"):
        assert len(scenario.tasks(split)) == len(returns_desk.tasks(split))
    case = Case.model_validate(returns_desk.tasks()[5].data)
    calls = [f"look_up_order {case.order_id}", f"read_policy {case.item}", f"{case.right_action} {case.order_id}"]
    replies = [*(f"Thought: so.\nAction: {each}" for each in calls), "Answer: That is done."]
    played = await rollout(scripted(*replies), scenario, scenario.tasks()[5])
    assert (played.status, played.metrics["success"], played.metrics["environment_reward"]) == ("finished", 1.0, 1.0)


async def test_a_world_that_fails_or_is_closed_in_a_step_is_an_error_and_no_reward() -> None:
    class World:
        async def observe(self, action: str) -> str:
            if action == "fail":
                raise RuntimeError("the database is gone")
            await asyncio.sleep(60)
            return action

    with served(Scenario("world", environment=World, tasks=[Task(user="Hi.")], held_out=[])) as url:
        number = (await ask(url, "/create", {})).json()["id"]
        await ask(url, "/reset", {"id": number})
        failed = (await ask(url, "/step", {"id": number, "action": "fail"})).json()
        assert ("the database is gone" in failed["error"], "reward" in failed) == (True, False)
        await ask(url, "/reset", {"id": number})
        step = asyncio.create_task(ask(url, "/step", {"id": number, "action": "x"}))
        await asyncio.sleep(0.2)
        assert "at once" in (await ask(url, "/step", {"id": number, "action": "y"})).json()["error"]
        assert (await ask(url, "/close", {"id": number})).json() == {"closed": True}
        assert "not valid" in (await step).json()["error"]


async def ask(url: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return await (client.get(path, **more) if body is None else client.post(path, json=body, **more))


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/step", {"id": 10_000, "action": "x"}, "not valid"),
        ("/step", {"id": True, "action": "x"}, "not valid"),
        ("/step", [1], "no JSON object"),
        ("/reset", {"id": 10_000, "data_idx": 0}, "not valid"),
        ("/close", {"id": None}, "not valid"),
        ("/observation?id=x", None, "no whole number"),
    ],
)
async def test_a_wrong_request_is_answered_with_an_error(path: str, body: Any, told: str, desk: str) -> None:
    answer = await ask(desk, path, body)
    assert (answer.status_code, told in answer.json()["error"]) == (200, True)


async def test_wrong_requests_about_an_environment_leave_it_usable(desk: str) -> None:
    number = (await ask(desk, "/create", {})).json()["id"]
    assert "not initialized" in (await ask(desk, "/step", {"id": number, "action": "x"})).json()["error"]
    assert "no item 99999" in (await ask(desk, "/reset", {"id": number, "data_idx": 99999})).json()["error"]
    assert "no whole number" in (await ask(desk, "/reset", {"id": number, "data_idx": "x"})).json()["error"]
    first = (await ask(desk, "/reset", {"id": number, "data_idx": 0})).json()
    assert (await ask(desk, f"/observation?id={number}")).json() == first["observation"]
    assert "a step is" in (await ask(desk, "/step", {"id": number, "action": 3})).json()["error"]
    over = (await ask(desk, "/step", {"id": number, "action": "No."})).json()
    assert (over["done"], over["reward"], over["status"]) == (True, 0.0, "finished")
    assert "has finished" in (await ask(desk, "/step", {"id": number, "action": "x"})).json()["error"]
    assert not (await ask(desk, "/reset", {"id": number, "data_idx": 1})).json()["done"]


async def test_the_number_of_environments_is_bounded() -> None:
    with served(returns_desk, most=2) as url:
        first, _ = [(await ask(url, "/create", {})).json()["id"] for _ in range(2)]
        full = await ask(url, "/create", {})
        assert full.status_code == 503
        assert "2 environments are open" in full.json()["error"]
        await ask(url, "/close", {"id": first})
        assert (await ask(url, "/create", {})).json()["id"] not in (first, first + 1)
        assert "expired" in (await ask(url, "/reset", {"id": first})).json()["error"]


async def test_a_key_is_asked_for_and_without_one_pages_of_other_sites_are_refused(desk: str, monkeypatch) -> None:
    assert (await ask(desk, "/", headers={"Host": "evil.example"})).status_code == 403
    assert (await ask(desk, "/create", {}, headers={"Origin": "http://evil.example"})).status_code == 403
    assert (await ask(desk, "/")).json()["gavel"] == "returns_desk"
    with served(returns_desk, key="secret") as url:
        assert (await ask(url, "/create", {})).status_code == 401
        assert (await ask(url, "/create", {}, headers={"Authorization": b"Bearer \xe9\xff"})).status_code == 401
        with pytest.raises(gavel.GavelError) as error:
            agentgym(url)
        assert "GAVEL_ENV_KEY" in error.value.remedy
        monkeypatch.setenv("GAVEL_ENV_KEY", "secret")
        assert agentgym(url).name == "agentgym_returns_desk"


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"\xff\xfe{", "application/json"), (b"{}", "application/json; charset=klingon"), (b"[" * 100_000, "text/plain")],
)
async def test_a_body_that_is_no_json_is_told(content: bytes, kind: str, desk: str) -> None:
    async with httpx.AsyncClient(base_url=desk, trust_env=False) as client:
        answer = await client.post("/step", content=content, headers={"Content-Type": kind})
        assert "no JSON" in answer.json()["error"]
        assert (await client.post("/step", content=b"x" * 2_000_000)).status_code == 413
