"""What an MCP server offers, as a text for a model that writes tasks for it. No tool is called."""

import json
from dataclasses import dataclass

from gavel.llm.types import Message
from gavel.scenarios.bridges.mcp import McpError, McpServer

_LONGEST = 30_000
"""Characters of each part."""
_OF_A_CLIENT = ("list_resources", "read_resource", "list_prompts", "get_prompt")


@dataclass(frozen=True, slots=True)
class McpSurvey:
    """The tools, resources and prompts of a server."""

    tools: list[Message]
    """As a model is shown them."""
    instructions: str
    """What the server says about its use."""
    resources: str
    prompts: str

    @property
    def described_tools(self) -> str:
        return json.dumps([tool["function"] for tool in self.tools], indent=1, ensure_ascii=False)[:_LONGEST]


async def survey(server: McpServer) -> McpSurvey:
    """What the server offers. Raises `McpError` when it cannot be reached, or has nothing for an agent to use."""
    async with server.session() as session:
        names = {schema["function"]["name"] for schema in session.schemas}
        listed: dict[str, str] = {}
        for name in ("list_resources", "list_prompts"):
            if name in names:
                result = await session.call(name, "{}")
                listed[name] = "" if result.error else result.content[:_LONGEST]
        found = McpSurvey(
            session.schemas,
            (session.instructions or "")[:_LONGEST],
            listed.get("list_resources", ""),
            listed.get("list_prompts", ""),
        )
    if not names - {*_OF_A_CLIENT} and not found.resources:
        raise McpError(f"the MCP server {server} has neither tools nor resources.", "Try it by hand, or name another.")
    return found
