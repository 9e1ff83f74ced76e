"""A world whose tools are known only once it is reset, such as those that a server lists.

    class Remote(ToolWorld):
        async def reset(self, task: gavel.Task) -> str | None: …     # fills self.schemas
        async def call(self, name, arguments) -> ToolResult: …        # runs one of them

It has the methods of any other environment besides; none of them is a tool.
"""

from abc import ABC, abstractmethod

from gavel.llm.types import Message
from gavel.scenarios.tools import ToolResult


class ToolWorld(ABC):
    schemas: list[Message]
    """OpenAI schemas of the tools, once the world is reset; their names are different."""

    @abstractmethod
    async def call(self, name: str, arguments: str) -> ToolResult:
        """Runs the tool of this name with arguments as the agent wrote them, JSON text. A `GavelError` fails the
        episode."""
