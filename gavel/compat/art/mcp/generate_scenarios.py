"""Drafts tasks for the tools of an MCP server with a model."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gavel.compat.art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool
from gavel.judge.drafted_reply import DraftError
from gavel.judge.task_drafts.writer import Material, write_batch
from gavel.llm.client import Client

_TOKENS_PER_SCENARIO = 400


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
    material = Material(
        tools=json.dumps([_tool(tool) for tool in tools], indent=1),
        resources=json.dumps([_resource(resource) for resource in resources], indent=1) if resources else "",
    )
    params = {
        "api_base": generator_base_url,
        "api_key": key,
        "max_completion_tokens": max(8000, _TOKENS_PER_SCENARIO * num_scenarios),
    }
    client = Client(f"openai/{generator_model}", params)  # whatever serves it speaks OpenAI's protocol
    try:
        batch = await write_batch(
            client, material, num_scenarios, criteria=False, instructions=custom_instructions or "", exact=True
        )
    except DraftError as error:
        raise ValueError(error.message) from error
    scenarios = GeneratedScenarioCollection(GeneratedScenario(task.user, task.difficulty) for task in batch.tasks)
    if show_preview:
        scenarios.print_difficulty_distribution()
        scenarios.preview()
    return scenarios


def _tool(tool: MCPTool | Mapping[str, Any]) -> dict[str, Any]:
    return (tool if isinstance(tool, MCPTool) else MCPTool.from_dict(tool)).to_dict()


def _resource(resource: MCPResource | Mapping[str, Any]) -> dict[str, Any]:
    return resource.to_dict() if isinstance(resource, MCPResource) else dict(resource)
