"""Tools of an MCP server (Model Context Protocol) for a scenario's agents.

    tools=[gavel.mcp("uvx mcp-server-sqlite --db-path shop.db")]
    tools=[gavel.mcp("https://mcp.example.com/mcp", headers={"Authorization": f"Bearer {key}"}, only=["search"])]

An address is a command, which is started for every episode and spoken to over its standard input and output, or the
URL of a server with the transport Streamable HTTP. Nothing is started and no package of MCP is imported before an
episode begins.
"""

import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.llm.types import Message

if TYPE_CHECKING:
    from gavel.scenarios.mcp_session import McpSession


class McpError(GavelError):
    """An MCP server cannot be reached, or does not speak the protocol."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server as an element of a scenario's `tools`. Raises `McpError` for an address that is none."""

    address: str | Sequence[str]
    """A command (a text is split as a shell would, and no shell runs it) or a URL."""
    _: KW_ONLY
    env: Mapping[str, str] | None = None
    """Variables of a command, besides a minimal environment (PATH, HOME, …)."""
    cwd: str | Path | None = None
    headers: Mapping[str, str] | None = None
    """Go with every request to a URL."""
    only: Sequence[str] | None = None
    """The tools that agents get, by their names at the server (None = all)."""
    without: Sequence[str] = ()
    start_seconds: float = 60.0
    """A session must begin within this time."""
    call_seconds: float = 60.0
    """A call that takes longer is answered with a tool error."""
    command: Sequence[str] = field(init=False, default=())
    """Empty for a URL."""

    def __post_init__(self) -> None:
        address = self.address
        if self.is_url:
            if self.env or self.cwd:
                raise McpError(f"env and cwd are for a command, and {address} is a URL.", "Leave them out.")
            return
        if self.headers:
            raise McpError("headers are for a URL, and this server is a command.", "Pass env={…} instead.")
        try:
            command = shlex.split(address) if isinstance(address, str) else address
        except ValueError as error:
            raise McpError(f"the command {address} cannot be read: {error}.", "Close its quotes.") from error
        if not command:
            raise McpError("the address of an MCP server is empty.", 'Give a command or URL: gavel.mcp("uvx server").')
        object.__setattr__(self, "command", tuple(command))

    def __str__(self) -> str:
        return shlex.join(self.command) or str(self.address)

    @property
    def is_url(self) -> bool:
        return isinstance(self.address, str) and self.address.startswith(("http://", "https://"))

    @asynccontextmanager
    async def session(self) -> "AsyncGenerator[McpSession]":
        """A session of one episode. Raises `McpError` if it cannot start, or the extra `mcp` is not installed."""
        try:
            from gavel.scenarios.mcp_session import open_session
        except ModuleNotFoundError as error:
            raise McpError("gavel.mcp needs the package mcp, which is not installed.", install_line("mcp")) from error

        async with open_session(self) as session:
            yield session


mcp = McpServer


async def survey(server: McpServer) -> tuple[list[Message], str]:
    """What the server offers: its tools as functions that a model is shown, and its instructions. Raises `McpError` if
    it cannot be reached, or has no tools."""
    async with server.session() as session:
        return [schema["function"] for schema in session.schemas], session.instructions or ""
