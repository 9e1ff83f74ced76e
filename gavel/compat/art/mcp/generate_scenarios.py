"""Drafts tasks for the tools of an MCP server with a model."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

from gavel.compat.art.mcp.types import GeneratedScenarioCollection, MCPResource, MCPTool
from gavel.prompts import render

_TOKENS_PER_SCENARIO = 400
_SCENARIO: dict[str, object] = {
    "type": "object",
    "properties": {"task": {"type": "string"}, "difficulty": {"type": "integer"}},
    "required": ["task", "difficulty"],
    "additionalProperties": False,
}
_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"scenarios": {"type": "array", "items": _SCENARIO}},
    "required": ["scenarios"],
    "additionalProperties": False,
}


async def generate_scenarios(
    tools: Sequence[MCPTool | Mapping[str, Any]],
    resources: Sequence[MCPResource | Mapping[str, Any]] | None = None,
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str = "openai/gpt-4.1-mini",
    generator_api_key: str | None = None,
    generator_base_url: str = "https://openrouter.ai/api/v1",
) -> GeneratedScenarioCollection:
    """Exactly `num_scenarios` tasks of graded difficulty. The key is by default that of OPENROUTER_API_KEY.

    Raises `ValueError` without a key, without tools and resources, and for a reply with another number of tasks.
    """
    key = generator_api_key or os.environ.get("OPENROUTER_API_KEY")
    if not key:
        raise ValueError("there is no key for the model: pass generator_api_key, or set OPENROUTER_API_KEY")
    if not tools and not resources:
        raise ValueError("there are neither tools nor resources to make scenarios for")
    prompt = render(
        "scenarios/mcp_tasks.j2",
        number=num_scenarios,
        tools=json.dumps([_tool(tool) for tool in tools], indent=1),
        resources=json.dumps([_resource(resource) for resource in resources or ()], indent=1),
        instructions=custom_instructions or "",
    )
    async with AsyncOpenAI(api_key=key, base_url=generator_base_url) as client:
        completion = await client.chat.completions.create(
            model=generator_model,
            messages=[{"role": "user", "content": prompt}],
            max_completion_tokens=max(8000, _TOKENS_PER_SCENARIO * num_scenarios),
            response_format={"type": "json_schema", "json_schema": {"name": "scenarios", "schema": _SCHEMA}},
        )
    scenarios = GeneratedScenarioCollection.from_json(completion.choices[0].message.content or "")
    if len(scenarios) != num_scenarios:
        raise ValueError(f"the model gave {len(scenarios)} scenarios, not {num_scenarios}: ask it again")
    if show_preview:
        scenarios.print_difficulty_distribution()
        scenarios.preview()
    return scenarios


def _tool(tool: MCPTool | Mapping[str, Any]) -> dict[str, Any]:
    return (tool if isinstance(tool, MCPTool) else MCPTool.from_dict(tool)).to_dict()


def _resource(resource: MCPResource | Mapping[str, Any]) -> dict[str, Any]:
    return resource.to_dict() if isinstance(resource, MCPResource) else dict(resource)
