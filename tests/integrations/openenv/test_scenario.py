"""`openenv:URL`: environments as scenarios, over servers that behave and over those that do not."""

import asyncio
import re
import time

import pytest

from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from tests.integrations.openenv.stand_in import ACTION, HALVER, StandIn
from tests.integrations.served import in_a_thread
from tests.scenarios.scripts import Step, scripted


async def play(server: StandIn, query: str = "", *turns: Step) -> Trajectory:
    with in_a_thread(server.app()) as url:
        scenario = find_scenario(f"openenv:{url}{query}")
        return await rollout(scripted(*turns) if turns else HALVER, scenario, scenario.tasks()[0], seed=1)


async def test_the_action_s_schema_is_the_agent_s_tool_and_rewards_are_metrics_for_comparison_only():
    found = await play(StandIn(), "?success=0.5")
    (tool,) = found.tools or []
    assert tool["function"]["name"] == "act"
    assert tool["function"]["description"] == "Guess the number."
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    }
    assert found.status == "finished"
    assert found.messages()[1] == {"role": "user", "content": "Guess a number from 1 to 9."}
    assert found.messages()[-1]["content"] == "right"
    assert found.metrics["raw_return"] == pytest.approx(1.0 - 0.1 * (found.metrics["turns"] - 1))
    assert found.metrics["raw_reward"] == 1.0
    assert found.metrics["environment_reward"] == found.metrics["raw_return"]
    assert found.reward is None
    assert found.step_rewards is None


async def test_tasks_are_seeds_and_never_in_both_splits():
    with in_a_thread(StandIn().app()) as url:
        one, same, other = [find_scenario(f"openenv:{url}?tasks=50&held_out=20&seed={seed}") for seed in (1, 1, 2)]
    ids = [{task.id for task in scenario.tasks(split)} for scenario in (one, other) for split in ("train", "held_out")]
    assert [len(each) for each in ids] == [50, 20, 50, 20]
    assert len(set.union(*ids)) == 140
    assert [task.id for task in one.tasks()] == [task.id for task in same.tasks()]


async def test_tasks_that_the_server_lists_are_taken():
    server = StandIn(splits=True)
    with in_a_thread(server.app()) as url:
        scenario = find_scenario(f"openenv:{url}?tasks=20")
        await rollout(HALVER, scenario, scenario.tasks("held_out")[3])
    assert [task.id for task in scenario.tasks()] == [f"train-{i}" for i in range(20)]
    assert [task.id for task in scenario.tasks("held_out")] == [f"hard-{i}" for i in range(4)]
    assert server.resets == [{"split": "hard", "index": 3}]


async def test_many_episodes_share_the_sessions_that_the_server_has():
    server = StandIn(sessions=4)
    with in_a_thread(server.app()) as url:
        scenario = find_scenario(f"openenv:{url}?tasks=64&success=0.5")
        found = await asyncio.gather(*(rollout(HALVER, scenario, task) for task in scenario.tasks()))
    assert {each.status for each in found} == {"finished"}
    assert scenario.success is not None
    assert all(map(scenario.success, found))
    assert server.peak <= 4
    assert (server.closed, server.open) == (64, 0)


async def test_a_server_that_stays_full_is_given_up():
    server = StandIn(sessions=0)
    found = await play(server, "?wait=0.3")
    assert found.status == "failed"
    assert "capacity" in (found.status_reason or "")
    assert server.refused > 1


async def test_one_failure_of_the_environment_is_told_and_three_in_a_row_end_the_episode():
    found = await play(StandIn(), "?turns=2", ("act", {"number": 99}))
    assert found.status == "truncated"
    assert "division by zero" in found.messages()[3]["content"]
    assert found.metrics["environment_errors"] == 2
    found = await play(StandIn("always fails"))
    assert found.status == "failed"
    assert "3 actions in a row" in (found.status_reason or "")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "closed|lost"),
        ("closes", "out of memory|closed"),
        ("silent", "did not answer step within 0.3 s"),
        ("no json", "no JSON"),
        ("other type", "no observation"),
        ("not a number", "no finite number"),
        ("no observation", "no observation"),
        ("reset fails", "no disk"),
    ],
)
async def test_a_server_that_misbehaves_fails_its_episode_with_the_reason(fault: str, said: str):
    started = time.monotonic()
    found = await play(StandIn(fault), "?seconds=0.3")
    assert found.status == "failed"
    assert re.search(said, found.status_reason or ""), found.status_reason
    assert time.monotonic() - started < 20


async def test_what_an_agent_reads_is_bounded():
    found = await play(StandIn("huge"))
    assert found.status == "finished"
    assert len(found.messages()[-1]["content"]) < 201_000
    assert found.metrics["raw_reward"] == 1.0


async def test_a_tool_for_each_kind_of_action():
    schema = {
        "oneOf": [{"$ref": "#/$defs/Guess"}, {"$ref": "#/$defs/Give"}],
        "$defs": {
            "Guess": {**ACTION, "properties": {**ACTION["properties"], "kind": {"const": "guess"}}},  # type: ignore[dict-item]
            "Give": {
                "title": "Give",
                "description": "Give up.",
                "type": "object",
                "properties": {"kind": {"const": "up"}},
            },
        },
    }
    found = await play(StandIn(action=schema), "?turns=1", ("guess", {"number": 1}))
    assert [tool["function"]["name"] for tool in found.tools or []] == ["guess", "up"]
    assert list((found.tools or [])[0]["function"]["parameters"]["properties"]) == ["number"]


async def test_without_a_threshold_nothing_is_said_of_success():
    with in_a_thread(StandIn().app()) as url:
        scenario = find_scenario(f"openenv:{url}")
        assert scenario.success is None
        found = await rollout(HALVER, scenario, scenario.tasks()[0])
    assert "success" not in found.metrics
    assert scenario.hand_reward is not None
    assert scenario.hand_reward(found) == found.metrics["raw_return"]


@pytest.mark.parametrize(
    ("fault", "turn", "errors", "told"),
    [
        ("", "Five?", 0, "calling the tool act"),
        ("", ("act", {"number": "five"}), 6, "number: Input should be a valid integer"),
        *(("always fails", ("act", each), 6, "JSON") for each in ("{", "[1]", "null")),  # none reaches the server
    ],
)
async def test_what_is_no_action_is_answered_with_how_to_act_however_often(fault: str, turn, errors: int, told: str):
    found = await play(StandIn(fault), "?turns=6", turn)
    assert found.status == "truncated"
    assert found.metrics["tool_errors"] == errors
    assert told in found.messages()[3]["content"]


async def test_an_agent_without_tool_calls_acts_in_words():
    with in_a_thread(StandIn().app()) as url:
        scenario = find_scenario(f"react:openenv:{url}?success=0.1")
        turns = (f'Thought: hm\nAction: act {{"number": {n}}}' for n in range(1, 10))
        found = await rollout(scripted(*turns), scenario, scenario.tasks()[0])
    assert (found.tools, scenario.success and scenario.success(found)) == (None, True)
