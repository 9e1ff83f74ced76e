"""Where MCP servers are, and sessions with one over HTTP that the protocol's own package serves."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gavel.scenarios.mcp import McpError, mcp

_SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop", log_level="ERROR")

@server.tool()
def price(item: str) -> dict[str, int]:
    "The price of an item."
    return {item: 12}

@server.tool()
def die() -> str:
    "Ends the server."
    os._exit(1)

server.run(transport="streamable-http", port=int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("", {}),
        ("  ", {}),
        ([], {}),
        ("run 'it", {}),
        ("http://x/mcp", {"env": {"A": "b"}}),
        ("server", {"headers": {"A": "b"}}),
    ],
)
def test_an_address_that_is_none_is_refused(address, options):
    with pytest.raises(McpError):
        mcp(address, **options)


def test_a_command_is_split_as_a_shell_would():
    assert mcp("uvx 'my server' --db=a").command == ("uvx", "my server", "--db=a")
    assert str(mcp(["uvx", "my server"])) == "uvx 'my server'"
    assert mcp("https://example.com/mcp").url == "https://example.com/mcp"


@contextlib.asynccontextmanager
async def served(path: Path) -> AsyncGenerator[str]:
    script = path / "server.py"
    script.write_text(_SERVER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), str(port))
    try:
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_server_over_http_is_used_and_its_end_is_told(tmp_path):
    async with served(tmp_path) as url:
        async with mcp(url).session() as session:
            assert [each["function"]["name"] for each in session.schemas] == ["price", "die"]
            assert "12" in (await session.call("price", '{"item": "lamp"}')).content
            assert (await session.call("price", "{}")).error
        with pytest.raises(McpError, match="cannot be used"):
            async with mcp(url.replace("/mcp", "/nothing")).session():
                pass
        async with mcp(url).session() as session:
            with pytest.raises(McpError, match="is lost"):
                await session.call("die", "")
            with pytest.raises(McpError, match="is lost"):
                await session.call("price", '{"item": "lamp"}')
