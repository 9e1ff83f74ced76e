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
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any, Self, TypeVar, cast

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)
from pydantic import ValidationError

from gavel.base.network import is_on_this_machine, pass_proxies
from gavel.llm.types import Message
from gavel.scenarios.mcp import McpError, McpServer
from gavel.scenarios.tools import ToolResult, no_such_tool, tool_error

_LONGEST = 200_000
"""Max characters of an answer; a longer one would exceed any context."""


def bounded(text: str) -> str:
    """The text without lone surrogates, truncated if longer than any context."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n[cut here: {len(text) - _LONGEST:,} more characters]"


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return _binary(block.type, block.mime_type, block.data)
        case ResourceLink():
            return f"[resource {block.uri}{f': {block.description}' if block.description else ''}]"
        case EmbeddedResource():
            return _resource_text(block.resource)


def _resource_text(part: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(part, TextResourceContents):
        return part.text
    return _binary("resource", f"{part.uri} {part.mime_type or ''}".strip(), part.blob)


def _binary(kind: str, name: str, base64: str) -> str:
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    return f"[{kind} {name}, {size:,} bytes, not shown]"


_T = TypeVar("_T")
_CLOSE_SECONDS = 15.0
"""Seconds for closing, longer than the SDK takes to end a process that resists."""
_PAGES = 100
"""Max pages of a listing, which might be endless."""
_STDERR_CHARACTERS = 500
"""Characters of a dead server's stderr that the error shows."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
"""Max length of a tool's name in OpenAI's API."""
_Call = Callable[[dict[str, Any]], Awaitable[ToolResult]]

logging.getLogger("mcp").addHandler(logging.NullHandler())  # otherwise tracebacks go to stderr


class McpSession:
    """An async context manager. `schemas` are the tools as a model is shown them; `call` runs one."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._stderr: IO[str] | None = None
        self._last_words = ""
        self._task: asyncio.Task[None] | None = None
        self._calls: dict[str, _Call] = {}
        self.schemas: list[Message] = []
        self.instructions: str | None = None
        """The server's instructions for its use."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._hold_connection())
        try:
            async with asyncio.timeout(self._server.start_seconds):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            await self._end()
            raise McpError(
                f"the MCP server {self._server} did not begin a session within {self._server.start_seconds:g} s"
                f"{self._printed()}",
                "Try it by hand, or raise start_seconds.",
            ) from error
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._end()

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Runs the tool of this name with arguments as the agent wrote them, JSON text.

        Rejections and timeouts are tool errors. Raises `McpError` for a lost connection.
        """
        if (run := self._calls.get(name)) is None:
            return no_such_tool(name, self._calls)
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return tool_error(f"the arguments of {name} are not valid JSON: {error}")
        if not isinstance(given, dict):
            return tool_error(f"the arguments of {name} must be a JSON object")
        values = cast("dict[str, Any]", given)
        seconds = self._server.call_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._while_connected(run(values))
        except TimeoutError:
            return tool_error(f"{name} did not answer within {seconds:g} s")
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._lost() from error
            if error.code == REQUEST_TIMEOUT:
                return tool_error(f"{name} did not answer within {seconds:g} s")
            return tool_error(f"{name}: {bounded(error.message)}")
        except (ValidationError, ValueError, RuntimeError) as error:  # a response that violates the protocol
            return tool_error(f"{name} was answered with something that cannot be read: {str(error).splitlines()[0]}")

    async def _while_connected(self, call: Awaitable[_T]) -> _T:
        """Returns the call's result; raises `McpError` as soon as the connection is lost."""
        assert self._task is not None
        running = asyncio.ensure_future(call)
        try:
            await asyncio.wait({running, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise self._lost()
            return running.result()
        finally:
            running.cancel()

    async def _hold_connection(self) -> None:
        """Holds the connection until the session is left."""
        try:
            async with self._connect() as client:
                self.instructions = client.instructions
                await self._list_tools(client)
                self._ready.set_result(None)
                await self._leave.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._ready.done():
                return  # callers get the error from their own requests
            cause = _first(error)
            failed = cause
            if not isinstance(cause, McpError):
                said = f"{type(cause).__name__}: {str(cause) or 'no reason was given'}"
                failed = McpError(
                    f"the MCP server {self._server} cannot be used: {said}{self._printed()}",
                    "Start it by hand to see what it says; give its whole command, or its URL with the path.",
                )
                failed.__cause__ = cause
            self._ready.set_exception(failed)

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Client]:
        server = self._server
        if server.url is not None:
            if is_on_this_machine(server.url):
                pass_proxies()  # from the client of the package mcp
            async with (
                create_mcp_http_client(headers=dict(server.headers)) as http,
                Client(streamable_http_client(server.url, http_client=http)) as client,
            ):
                yield client
            return
        command, *arguments = server.command
        parameters = StdioServerParameters(
            command=command, args=arguments, env=dict(server.env), cwd=server.cwd, encoding_error_handler="replace"
        )
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as self._stderr:
            try:
                async with Client(stdio_client(parameters, errlog=self._stderr)) as client:
                    yield client
            finally:
                self._last_words = self._printed()

    async def _list_tools(self, client: Client) -> None:
        tools = await _pages(lambda cursor: client.list_tools(cursor=cursor), lambda page: page.tools)
        server = self._server
        names = {tool.name for tool in tools}
        if unknown := ((server.only or frozenset()) | server.without) - names:
            raise McpError(
                f"the MCP server {server} has no tool {min(unknown)!r}; it has: {', '.join(sorted(names)) or 'none'}",
                "Name its tools in only= and without= as it does.",
            )
        for tool in tools:
            if tool.name not in server.without and (server.only is None or tool.name in server.only):
                self._offer(
                    tool.name, tool.description or tool.title or "", tool.input_schema, self._tool(client, tool)
                )
        if server.only is None:
            await self._offer_resources(client)
            await self._offer_prompts(client)

    async def _offer_resources(self, client: Client) -> None:
        if client.server_capabilities.resources is None or not (await client.list_resources()).resources:
            return

        async def list_resources(arguments: dict[str, Any]) -> ToolResult:
            found = await _pages(lambda cursor: client.list_resources(cursor=cursor), lambda page: page.resources)
            lines = [f"{each.uri}: {each.description or each.name}" for each in found]
            return ToolResult(bounded("\n".join(lines)) or "There are no resources.")

        async def read_resource(arguments: dict[str, Any]) -> ToolResult:
            found = await client.read_resource(_text(arguments, "uri"))
            return ToolResult(bounded("\n".join(map(_resource_text, found.contents))))

        self._offer("list_resources", "List what can be read with read_resource.", _schema(), list_resources)
        self._offer("read_resource", "Read a resource.", _schema("uri"), read_resource)

    async def _offer_prompts(self, client: Client) -> None:
        if client.server_capabilities.prompts is None or not (await client.list_prompts()).prompts:
            return

        async def list_prompts(arguments: dict[str, Any]) -> ToolResult:
            found = await _pages(lambda cursor: client.list_prompts(cursor=cursor), lambda page: page.prompts)
            lines = [
                f"{each.name}({', '.join(given.name for given in each.arguments or ())}): {each.description or ''}"
                for each in found
            ]
            return ToolResult(bounded("\n".join(lines)) or "There are no prompts.")

        async def get_prompt(arguments: dict[str, Any]) -> ToolResult:
            given: object = arguments.get("arguments") or {}
            if not isinstance(given, dict):
                return tool_error("get_prompt: its arguments must be a JSON object")
            texts = {key: str(value) for key, value in cast("dict[str, Any]", given).items()}
            prompt = await client.get_prompt(_text(arguments, "name"), texts)
            return ToolResult(bounded("\n".join(f"{m.role}: {_block_text(m.content)}" for m in prompt.messages)))

        schema = _schema("name")
        schema["properties"]["arguments"] = {"type": "object", "additionalProperties": {"type": "string"}}
        self._offer("list_prompts", "List the server's prompts.", _schema(), list_prompts)
        self._offer("get_prompt", "Get one of the server's prompts.", schema, get_prompt)

    def _tool(self, client: Client, tool: Tool) -> _Call:
        async def run(arguments: dict[str, Any]) -> ToolResult:
            result = await client.call_tool(tool.name, arguments, read_timeout_seconds=self._server.call_seconds)
            text = "\n".join(map(_block_text, result.content))
            if not result.content and result.structured_content is not None:
                text = json.dumps(result.structured_content, ensure_ascii=False)
            return ToolResult(bounded(text), error=result.is_error)

        return run

    def _offer(self, name: str, description: str, parameters: dict[str, Any], call: _Call) -> None:
        """Adds a tool under a unique name that every API accepts."""
        plain = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME] or "tool"
        number = 1
        while (own := plain if number == 1 else f"{plain[: _LONGEST_NAME - 4]}_{number}") in self._calls:
            number += 1
        self._calls[own] = call
        function = {"name": own, "description": description, "parameters": {"type": "object", **parameters}}
        self.schemas.append({"type": "function", "function": function})

    async def _end(self) -> None:
        self._leave.set()
        assert self._task is not None
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        self._task.cancel()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # retrieved, whether or not somebody waits for it

    def _lost(self) -> McpError:
        return McpError(
            f"the connection to the MCP server {self._server} is lost{self._printed()}",
            "Its own log may say why; the next episode begins a new session.",
        )

    def _printed(self) -> str:
        """The end of the output of a server that was started here."""
        if self._stderr is None or self._stderr.closed:
            return self._last_words
        self._stderr.seek(0)
        text = self._stderr.read().strip()
        return f"; it printed: …{text[-_STDERR_CHARACTERS:]}" if text else ""


async def _pages(fetch: Callable[[str | None], Awaitable[Any]], items: Callable[[Any], Sequence[_T]]) -> list[_T]:
    found: list[_T] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await fetch(cursor)
        found += items(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    return value


def _schema(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


def _first(error: BaseException) -> BaseException:
    """The first error: task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
