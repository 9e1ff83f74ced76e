"""Scenarios for the tools of an MCP server, drafted by a model."""

from gavel.compat.art.mcp.generate_scenarios import generate_scenarios
from gavel.compat.art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool

__all__ = [
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "MCPResource",
    "MCPTool",
    "complete_task_tool",
    "generate_scenarios",
]

complete_task_tool = MCPTool(
    name="complete_task",
    description="Ends the task",
    parameters={
        "type": "object",
        "properties": {"summary": {"type": "string", "description": "What was accomplished"}},
        "required": ["summary"],
    },
)
"""The tool by which an agent says that it is done."""
