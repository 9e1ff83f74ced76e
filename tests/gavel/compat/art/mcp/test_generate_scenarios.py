"""Tasks for the tools of an MCP server, drafted by a model."""

import json

import pytest

from gavel.compat.art.mcp import MCPResource, MCPTool, complete_task_tool, generate_scenarios
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
