"""The tools of one episode: functions, methods of its environment, and those of MCP servers.

Sessions with MCP servers begin with the episode and end with it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from gavel.base.errors import GavelError, contain_cancellation
from gavel.llm.types import Message
from gavel.scenarios.deadline import Deadline
from gavel.scenarios.environment import ToolWorld, World
from gavel.scenarios.episode import Episode
from gavel.scenarios.mcp import McpServer
from gavel.scenarios.tools import Toolbox, ToolDefinitionError, ToolResult, described, no_such_tool, tool_error


class EpisodeTools:
    """What the agent can call. `schemas` are the tools as it is shown them."""

    def __init__(self, most: int | None = None) -> None:
        """`most` characters of a result are shown (None: all)."""
        self.schemas: list[Message] = []
        self._most = most
        self._calls: dict[str, Callable[[str], Awaitable[ToolResult]]] = {}

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Runs a tool with arguments as the agent wrote them. Raises `McpError` when its server is lost."""
        call = self._calls.get(name)
        result = no_such_tool(name, self._calls) if call is None else await call(arguments)
        whole = len(result.content)
        if self._most is None or whole <= self._most:
            return result
        left_out = f"{whole - self._most:,} of {whole:,} characters left out"
        return replace(result, content=f"{result.content[: self._most]}\n… {left_out}")

    def add(self, schema: Message, call: Callable[[str], Awaitable[ToolResult]]) -> None:
        name = schema["function"]["name"]
        if name in self._calls:
            raise ToolDefinitionError(
                f"two tools of an episode are called {name}",
                "Rename one, or leave one out: gavel.mcp(…, without=[…]), @gavel.not_a_tool.",
            )
        self._calls[name] = call
        self.schemas.append(schema)


@asynccontextmanager
async def episode_tools(
    toolbox: Toolbox,
    servers: Sequence[McpServer],
    world: World | None,
    episode: Episode,
    seconds: float,
    most_characters: int | None = None,
) -> AsyncGenerator[EpisodeTools]:
    """The tools of an episode whose world is made. A call that waits longer than `seconds` is a tool error, and
    of a result `most_characters` are shown.

    Raises `McpError` for a server without a session, `ToolDefinitionError` for two tools of one name.
    """
    tools = EpisodeTools(most_characters)
    for tool in toolbox:
        tools.add(tool.schema, partial(tool.call, episode=episode, seconds=seconds))
    if world is not None:
        for tool in world.tools:
            call = partial(
                tool.call, episode=episode, environment=world.environment, on_loop=world.on_loop, seconds=seconds
            )
            tools.add(tool.schema, call)
        for schema in world.schemas:
            tools.add(schema, partial(_within, world.environment, schema["function"]["name"], seconds))
    async with AsyncExitStack() as sessions:
        for server in servers:
            session = await sessions.enter_async_context(server.session())
            for schema in session.schemas:
                tools.add(schema, partial(session.call, schema["function"]["name"]))
        yield tools


async def _within(world: ToolWorld, name: str, seconds: float, arguments: str) -> ToolResult:
    """What a tool of the world answers; a tool error where that takes longer than `seconds`, or it raises."""
    limit = Deadline(seconds, f"the tool {name}")
    try:
        async with limit:
            return await contain_cancellation(world.call(name, arguments))
    except GavelError:
        raise
    except (Exception, SystemExit) as error:
        if limit.expired():
            return tool_error(f"{name} did not answer within {seconds:g} s")
        return tool_error(f"{name} failed: {described(error)}")
