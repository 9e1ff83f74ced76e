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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, cast

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
)
from pydantic import ValidationError

from gavel.base.network import is_on_this_machine, pass_proxies
from gavel.llm.types import Message
from gavel.scenarios.mcp import McpError, McpServer
from gavel.scenarios.tools import ToolResult, no_such_tool, tool_error

_LONGEST = 200_000
"""Max characters of an answer; a longer one would exceed any context."""
_CLOSE_SECONDS = 15.0
"""Seconds for closing, longer than the SDK takes to end a process that resists."""
_PAGES = 100
"""Max pages of a listing, which might be endless."""
_STDERR_CHARACTERS = 500
"""Characters of a dead server's stderr that the error shows."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
"""Max length of a tool's name in OpenAI's API."""
_URI = {"properties": {"uri": {"type": "string"}}, "required": ["uri"]}
_PROMPT = {
    "properties": {
        "name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
}

logging.getLogger("mcp").addHandler(logging.NullHandler())  # otherwise tracebacks go to stderr


class McpSession:
    """An async context manager. `schemas` are the tools as a model is shown them; `call` runs one."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 closed by _end
        self._task: asyncio.Task[None] | None = None
        self._calls: dict[str, Callable[..., Awaitable[str | ToolResult]]] = {}
        """Each takes the tool's arguments by name."""
        self.schemas: list[Message] = []
        self.instructions: str | None = None
        """The server's instructions for its use."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._hold_connection())
        try:
            async with asyncio.timeout(self._server.start_seconds):
                await asyncio.shield(self._ready)
        except BaseException as error:
            printed = self._printed()
            await self._end()
            if not isinstance(error, TimeoutError):
                raise
            late = f"did not begin a session within {self._server.start_seconds:g} s{printed}"
            remedy = "Try it by hand, or raise start_seconds."
            raise McpError(f"the MCP server {self._server} {late}", remedy) from error
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
            given: object = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return tool_error(f"the arguments of {name} are not valid JSON: {error}")
        if not isinstance(given, dict):
            return tool_error(f"the arguments of {name} must be a JSON object")
        assert self._task is not None
        running = asyncio.ensure_future(run(cast("dict[str, Any]", given)))
        try:
            done, _ = await asyncio.wait(
                {running, self._task}, timeout=self._server.call_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise TimeoutError
            if not running.done():
                raise self._lost()
            result = running.result()
            return result if isinstance(result, ToolResult) else ToolResult(bounded(result))
        except (TimeoutError, MCPError) as error:
            code = error.code if isinstance(error, MCPError) else REQUEST_TIMEOUT
            if code == CONNECTION_CLOSED:
                raise self._lost() from error
            if code == REQUEST_TIMEOUT:
                return tool_error(f"{name} did not answer within {self._server.call_seconds:g} s")
            return tool_error(f"{name}: {bounded(str(error))}")
        except KeyError as error:
            return tool_error(f"{name} needs the argument {error}")
        except (ValidationError, ValueError, RuntimeError) as error:  # a response that violates the protocol
            problem = str(error).partition("\n")[0]
            return tool_error(f"{name} was answered with something that cannot be read: {problem}")
        finally:
            running.cancel()

    async def _hold_connection(self) -> None:
        """Holds the connection until the session is left."""
        try:
            async with self._connect() as client:
                self.instructions = client.instructions
                await self._offer_all(client)
                self._ready.set_result(None)
                await self._leave.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._ready.done():
                return  # callers get the error from their own requests
            cause = error
            while isinstance(cause, BaseExceptionGroup):  # of the SDK's task groups
                cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
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
        async with Client(stdio_client(parameters, errlog=self._stderr)) as client:
            yield client

    async def _offer_all(self, client: Client) -> None:
        """Offers the chosen tools; without a choice also tools that read the server's resources and prompts."""
        server, tools = self._server, await _listed(client.list_tools, "tools")
        names = {tool.name for tool in tools}
        if unknown := ((server.only or frozenset()) | server.without) - names:
            raise McpError(
                f"the MCP server {server} has no tool {min(unknown)!r}; it has: {', '.join(sorted(names)) or 'none'}",
                "Name its tools in only= and without= as it does.",
            )
        for tool in tools:
            if tool.name not in server.without and (server.only is None or tool.name in server.only):
                call = partial(self._call_tool, client, tool.name)
                self._offer(tool.name, tool.description or tool.title or "", tool.input_schema, call)
        if server.only is not None:
            return

        async def list_resources(_: dict[str, Any]) -> str:
            found = await _listed(client.list_resources, "resources")
            return "\n".join(f"{each.uri}: {each.description or each.name}" for each in found)

        async def read_resource(arguments: dict[str, Any]) -> str:
            return "\n".join(map(_resource_text, (await client.read_resource(str(arguments["uri"]))).contents))

        async def list_prompts(_: dict[str, Any]) -> str:
            return "\n".join(
                f"{each.name}({', '.join(given.name for given in each.arguments or ())}): {each.description or ''}"
                for each in await _listed(client.list_prompts, "prompts")
            )

        async def get_prompt(arguments: dict[str, Any]) -> str:
            given = {key: str(value) for key, value in dict(arguments.get("arguments") or {}).items()}
            prompt = await client.get_prompt(str(arguments["name"]), given)
            return "\n".join(f"{each.role}: {_block_text(each.content)}" for each in prompt.messages)

        can = client.server_capabilities
        if can.resources is not None and await list_resources({}):
            self._offer(
                "list_resources", "List what can be read with read_resource.", {"properties": {}}, list_resources
            )
            self._offer("read_resource", "Read a resource.", _URI, read_resource)
        if can.prompts is not None and await list_prompts({}):
            self._offer("list_prompts", "List the server's prompts.", {"properties": {}}, list_prompts)
            self._offer("get_prompt", "Get one of the server's prompts.", _PROMPT, get_prompt)

    async def _call_tool(self, client: Client, name: str, arguments: dict[str, Any]) -> ToolResult:
        result = await client.call_tool(name, arguments, read_timeout_seconds=self._server.call_seconds)
        text = "\n".join(map(_block_text, result.content))
        if not result.content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        return ToolResult(bounded(text), error=result.is_error)

    def _offer(
        self,
        name: str,
        description: str,
        parameters: dict[str, Any],
        call: Callable[[dict[str, Any]], Awaitable[str | ToolResult]],
    ) -> None:
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
        self._stderr.close()

    def _lost(self) -> McpError:
        return McpError(
            f"the connection to the MCP server {self._server} is lost{self._printed()}",
            "Its own log may say why; the next episode begins a new session.",
        )

    def _printed(self) -> str:
        """The end of the output of a server that was started here."""
        if self._stderr.closed:
            return ""
        self._stderr.seek(0)
        text = self._stderr.read().strip()
        return f"; it printed: …{text[-_STDERR_CHARACTERS:]}" if text else ""


async def _listed(fetch: Callable[..., Awaitable[Any]], kind: str) -> list[Any]:
    """The tools, resources or prompts of all pages."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await fetch(cursor=cursor)
        found += getattr(page, kind)
        if (cursor := page.next_cursor) is None:
            break
    return found


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
