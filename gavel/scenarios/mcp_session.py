"""One episode's session with an MCP server, and its answers as text for an agent.

The connection lives in its own task, so that failures of the server or the transport reach a caller only as `McpError`,
or as a tool error for the agent. Every wait has a deadline, and leaving the session ends a server that it started.
Images, sound and binary resources are named with their type and size.
"""

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import IO, Any, cast

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import Tool as McpTool

from gavel.base.network import is_on_this_machine, pass_proxies
from gavel.llm.types import Message
from gavel.scenarios.mcp import McpError, McpServer
from gavel.scenarios.tool_results import text_of_result
from gavel.scenarios.tools import ToolResult, no_such_tool, parse_arguments, tool_error

_CLOSE_SECONDS = 15.0
"""Seconds for closing, longer than the SDK takes to end a process that resists."""
_PAGES = 100
"""Max pages of the list of tools, which might be endless."""
_STDERR_CHARACTERS = 500
"""Characters of a dead server's stderr that the error shows."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
"""Max length of a tool's name in OpenAI's API."""

logging.getLogger("mcp").addHandler(logging.NullHandler())  # otherwise tracebacks go to stderr


class McpSession:
    """`schemas` are the tools as a model is shown them; `call` runs one."""

    def __init__(self, server: McpServer, client: Client, tools: list[McpTool], stderr: IO[str]) -> None:
        self._server = server
        self._client = client
        self._stderr = stderr
        self._names: dict[str, str] = {}
        """The tools' names at the server, by unique names that every API accepts."""
        self.instructions = client.instructions
        """The server's instructions for its use."""
        self.schemas: list[Message] = []
        for tool in tools:
            plain, number = _NOT_IN_NAMES.sub("_", tool.name)[:_LONGEST_NAME] or "tool", 1
            while (own := plain if number == 1 else f"{plain[: _LONGEST_NAME - 4]}_{number}") in self._names:
                number += 1
            self._names[own] = tool.name
            function = {"name": own, "description": tool.description or tool.title or ""}
            parameters = {"type": "object", **tool.input_schema}
            self.schemas.append({"type": "function", "function": {**function, "parameters": parameters}})

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Runs the tool of this name with arguments as the agent wrote them, JSON text.

        Rejections and timeouts are tool errors. Raises `McpError` for a lost connection.
        """
        if name not in self._names:
            return no_such_tool(name, self._names)
        given = parse_arguments(name, arguments)
        if isinstance(given, ToolResult):
            return given
        seconds = self._server.call_seconds
        try:
            return _result(await self._client.call_tool(self._names[name], given, read_timeout_seconds=seconds))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise McpError(
                    f"the connection to the MCP server {self._server} is lost{_printed(self._stderr)}",
                    "Its own log may say why; the next episode begins a new session.",
                ) from error
            late = f" did not answer within {seconds:g} s"
            return tool_error(name + (late if error.code == REQUEST_TIMEOUT else f": {error}"))
        except (ValueError, RuntimeError) as error:  # a response that violates the protocol
            problem = str(error).partition("\n")[0]
            return tool_error(f"{name} was answered with something that cannot be read: {problem}")


@asynccontextmanager
async def open_session(server: McpServer) -> AsyncGenerator[McpSession]:
    """Raises `McpError` if the session does not begin, and for tools that the server does not have."""
    ready: asyncio.Future[McpSession] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:

        async def hold() -> None:
            async with _connect(server, stderr) as client:
                ready.set_result(McpSession(server, client, await _choose_tools(server, client), stderr))
                await leave.wait()

        connection = asyncio.create_task(hold())
        try:
            await asyncio.wait({ready, connection}, timeout=server.start_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise _cannot_begin(server, connection, stderr)
            yield ready.result()
        finally:
            leave.set()
            if not ready.done():
                connection.cancel()
            await asyncio.wait({connection}, timeout=_CLOSE_SECONDS)
            connection.cancel()
            if connection.done() and not connection.cancelled():
                connection.exception()  # retrieved: callers get it from their own requests


def _cannot_begin(server: McpServer, connection: "asyncio.Task[None]", stderr: IO[str]) -> McpError:
    if not connection.done():
        late = f"did not begin a session within {server.start_seconds:g} s{_printed(stderr)}"
        return McpError(f"the MCP server {server} {late}", "Try it by hand, or raise start_seconds.")
    cause = asyncio.CancelledError() if connection.cancelled() else connection.exception()
    while isinstance(cause, BaseExceptionGroup):  # of the SDK's task groups
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    if isinstance(cause, McpError):
        return cause
    error = McpError(
        f"the MCP server {server} cannot be used: {type(cause).__name__}: {str(cause) or 'no reason was given'}"
        f"{_printed(stderr)}",
        "Start it by hand to see what it says; give its whole command, or its URL with the path.",
    )
    error.__cause__ = cause
    return error


@asynccontextmanager
async def _connect(server: McpServer, stderr: IO[str]) -> AsyncGenerator[Client]:
    if server.is_url:
        url = str(server)
        if is_on_this_machine(url):
            pass_proxies()  # from the client of the package mcp
        async with (
            create_mcp_http_client(headers=dict(server.headers or {})) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield client
        return
    command, *arguments = server.command
    parameters = StdioServerParameters(
        command=command, args=arguments, env=dict(server.env or {}), cwd=server.cwd, encoding_error_handler="replace"
    )
    async with Client(stdio_client(parameters, errlog=cast("Any", stderr))) as client:
        yield client


async def _choose_tools(server: McpServer, client: Client) -> list[McpTool]:
    """The tools of all pages that `only` and `without` leave."""
    tools: list[McpTool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if (cursor := page.next_cursor) is None:
            break
    if not tools:
        raise McpError(f"the MCP server {server} has no tools.", "Try it by hand, or name another.")
    names = {tool.name for tool in tools}
    if unknown := {*(server.only or ()), *server.without} - names:
        raise McpError(
            f"the MCP server {server} has no tool {min(unknown)!r}; it has: {', '.join(sorted(names))}",
            "Name its tools in only= and without= as it does.",
        )
    chosen = (names if server.only is None else {*server.only}) - {*server.without}
    return [tool for tool in tools if tool.name in chosen]


def _printed(stderr: IO[str]) -> str:
    """The end of the output of a server that was started here."""
    if stderr.closed:
        return ""
    stderr.seek(0)
    text = stderr.read().strip()
    return f"; it printed: …{text[-_STDERR_CHARACTERS:]}" if text else ""


def _result(result: CallToolResult) -> ToolResult:
    text = "\n".join(map(_block_text, result.content))
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return ToolResult(text_of_result(text), error=result.is_error)


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return _binary(block.type, block.mime_type, block.data)
        case ResourceLink():
            return f"[resource {block.uri}{f': {block.description}' if block.description else ''}]"
        case EmbeddedResource(resource=TextResourceContents() as part):
            return part.text
        case EmbeddedResource(resource=part):
            assert isinstance(part, BlobResourceContents)
            return _binary("resource", f"{part.uri} {part.mime_type or ''}".strip(), part.blob)


def _binary(kind: str, name: str, base64: str) -> str:
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    return f"[{kind} {name}, {size:,} bytes, not shown]"
