"""Tools of an MCP server (Model Context Protocol) for a scenario's agents.

    tools=[gavel.mcp("uvx mcp-server-sqlite --db-path shop.db")]
    tools=[gavel.mcp("https://mcp.example.com/mcp", headers={"Authorization": f"Bearer {key}"}, only=["search"])]

An address is a command, which is started for every episode and spoken to over its standard input and output, or the
URL of a server with the transport Streamable HTTP. Nothing is started and no package of MCP is imported before an
episode begins.
"""

import json
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gavel.base.errors import GavelError
from gavel.base.extras import install_line

if TYPE_CHECKING:
    from gavel.scenarios.mcp_session import McpSession


class McpError(GavelError):
    """An MCP server cannot be reached, or does not speak the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server's location, and the tools that agents get."""

    command: Sequence[str] = ()
    """Command that starts the server; empty for one with a `url`."""
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    start_seconds: float = 60.0
    call_seconds: float = 60.0

    def __str__(self) -> str:
        return self.url or shlex.join(self.command)

    @asynccontextmanager
    async def session(self) -> "AsyncGenerator[McpSession]":
        """A session of one episode. Raises `McpError` if it cannot start, or the extra `mcp` is not installed."""
        try:
            from gavel.scenarios.mcp_session import open_session
        except ModuleNotFoundError as error:
            raise McpError("gavel.mcp needs the package mcp, which is not installed.", install_line("mcp")) from error

        async with open_session(self) as session:
            yield session


def mcp(
    address: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
    without: Sequence[str] = (),
    start_seconds: float = 60.0,
    call_seconds: float = 60.0,
) -> McpServer:
    """An MCP server as an element of a scenario's `tools`.

    `address`: a command (a text is split as a shell would, and no shell runs it) or a URL. A command gets a minimal
    environment (PATH, HOME, …) and `env`; `headers` go with every request to a URL. `only` and `without` choose tools
    by their names at the server. A session must begin within `start_seconds`; a call that takes longer than
    `call_seconds` is answered with a tool error.

    Raises `McpError` for an address that is neither.
    """
    is_url = isinstance(address, str) and address.startswith(("http://", "https://"))
    if is_url and (env or cwd):
        raise McpError(f"env and cwd are for a command, and {address} is a URL.", "Leave them out.")
    if headers and not is_url:
        raise McpError("headers are for a URL, and this server is a command.", "Pass env={…} instead.")
    try:
        command = () if is_url else tuple(shlex.split(address) if isinstance(address, str) else address)
    except ValueError as error:
        raise McpError(f"the command {address} cannot be read: {error}.", "Close its quotes.") from error
    if not is_url and not command:
        raise McpError("the address of an MCP server is empty.", 'Give a command or a URL: gavel.mcp("uvx server").')
    return McpServer(
        command=command,
        url=str(address) if is_url else None,
        env=dict(env or {}),
        cwd=None if cwd is None else Path(cwd),
        headers=dict(headers or {}),
        only=None if only is None else frozenset(only),
        without=frozenset(without),
        start_seconds=start_seconds,
        call_seconds=call_seconds,
    )


_LONGEST = 30_000
"""Max characters of each part of a survey."""


@dataclass(frozen=True, slots=True)
class McpSurvey:
    """What a server says of itself."""

    tools: int
    described_tools: str
    """The tools as JSON, as a model is shown them."""
    instructions: str
    """For the use of the server."""


async def survey(server: McpServer) -> McpSurvey:
    """Lists what the server offers. Raises `McpError` if it cannot be reached, or has no tools."""
    async with server.session() as session:
        functions = [schema["function"] for schema in session.schemas]
    described = json.dumps(functions, indent=1, ensure_ascii=False)[:_LONGEST]
    return McpSurvey(len(functions), described, (session.instructions or "")[:_LONGEST])
