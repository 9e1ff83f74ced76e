"""Tasks for the tools of an MCP server, drafted by a model, and their collections."""

import json

import pytest

from gavel.integrations.art.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
    generate_scenarios,
)
from tests.endpoint import Endpoint, says

DRAFT = {"scenarios": [{"task": f"Find order {n}.", "difficulty": n} for n in (1, 3, 5)]}


async def test_tasks_are_drafted_from_tools_and_resources(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says(json.dumps(DRAFT))]
    scenarios = await generate_scenarios(
        [MCPTool("look_up", "finds {{ an }} order"), {"name": "pay"}],
        [MCPResource("file:///orders")],
        num_scenarios=3,
        custom_instructions="Only refunds.",
        generator_api_key="none",
        generator_base_url=f"{endpoint.url}/v1",
    )
    train, held_out = scenarios.split(2)
    assert ([s.difficulty for s in train], [s.task for s in held_out]) == ([1, 3], ["Find order 5."])
    prompt = endpoint.requests[0]["messages"][0]["content"]
    assert all(part in prompt for part in ("finds {{ an }} order", "pay", "file:///orders", "Only refunds.", "3 tasks"))


async def test_another_number_of_tasks_and_a_missing_key_are_errors(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.script = [lambda _: says(json.dumps(DRAFT))]
    monkeypatch.setenv("OPENROUTER_API_KEY", "none")
    with pytest.raises(ValueError, match="3 scenarios, not 4"):
        await generate_scenarios([complete_task_tool], num_scenarios=4, generator_base_url=f"{endpoint.url}/v1")
    with pytest.raises(ValueError, match="neither tools nor resources"):
        await generate_scenarios([])
    monkeypatch.delenv("OPENROUTER_API_KEY")
    with pytest.raises(ValueError, match="OPENROUTER_API_KEY"):
        await generate_scenarios([complete_task_tool])


SCENARIOS = GeneratedScenarioCollection(GeneratedScenario(f"task {n}", 1 + n % 5) for n in range(7))


def test_a_collection_is_the_same_after_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert GeneratedScenarioCollection.from_json(SCENARIOS.to_json()).to_dicts() == SCENARIOS.to_dicts()
    assert len(GeneratedScenarioCollection.from_json('[{"task": "x", "difficulty": 2}]')) == 1
    assert sorted(s.task for s in SCENARIOS.shuffle()) == [s.task for s in SCENARIOS]
    assert [s.difficulty for s in SCENARIOS.filter_by_difficulty(4)] == [4, 5]
    assert SCENARIOS.get_summary()["total_scenarios"] == 7
    SCENARIOS.preview(1)
    SCENARIOS.print_difficulty_distribution()
    assert capsys.readouterr().out.count("task") == 1


def test_tools_and_resources_are_read_as_servers_write_them() -> None:
    tool = MCPTool.from_dict({"name": "look", "parameters": {"type": "object"}})
    assert tool.to_tool_schema()["function"] == {"name": "look", "description": "", "parameters": {"type": "object"}}
    resource = {"uri": "file:///a", "name": "", "description": "", "mimeType": "text/plain"}
    assert MCPResource.from_dict(resource).to_dict() == resource
