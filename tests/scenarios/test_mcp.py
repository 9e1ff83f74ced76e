"""Where MCP servers are, and sessions with one over HTTP that the protocol's own package serves."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gavel.base.errors import GavelError
from gavel.base.network import free_port
from gavel.scenarios.environment import ToolWorld
from gavel.scenarios.mcp import McpError, mcp
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import ToolResult
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.scripts import Step, scripted

_SERVER = """
import os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop", log_level="ERROR")

@server.tool()
def price(item: str) -> dict[str, int]:
    return {item: 12}

@server.tool()
def die() -> str:
    os._exit(1)

server.run(transport="streamable-http", port=int(sys.argv[1]))
"""
A_B = {"A": "b"}
NONE = [("", {}), ("  ", {}), ([], {}), ("run 'it", {}), ("http://x/mcp", {"env": A_B}), ("server", {"headers": A_B})]


def test_a_command_is_split_as_a_shell_would_and_an_address_that_is_none_is_refused():
    for address, options in NONE:
        with pytest.raises(McpError):
            mcp(address, **options)
    assert mcp("uvx 'my server' --db=a").command == ("uvx", "my server", "--db=a")
    assert str(mcp(["uvx", "my server"])) == "uvx 'my server'"
    assert str(mcp("https://example.com/mcp")) == "https://example.com/mcp"


@contextlib.contextmanager
def served(path: Path) -> Generator[str]:
    script = path / "server.py"
    script.write_text(_SERVER)
    port = free_port()
    with subprocess.Popen([sys.executable, str(script), str(port)]) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


@pytest.mark.slow
async def test_a_server_over_http_is_used_and_its_end_is_told(tmp_path):
    with served(tmp_path) as url:
        async with mcp(url).session() as session:
            assert [each["function"]["name"] for each in session.schemas] == ["price", "die"]
            assert "12" in (await session.call("price", '{"item": "lamp"}')).content
            assert (await session.call("price", "{}")).error
        with pytest.raises(McpError, match="cannot be used"):
            async with mcp(url.replace("/mcp", "/nothing")).session():
                pass
        async with mcp(url).session() as session:
            for name, arguments in (("die", ""), ("price", '{"item": "lamp"}')):
                with pytest.raises(McpError, match="is lost"):
                    await session.call(name, arguments)


SERVERS = Path(__file__).with_name("mcp_servers.py")


def server(kind: str, **options):
    return mcp([sys.executable, str(SERVERS), kind], **options)


async def test_an_agent_is_shown_the_tools_under_names_of_their_own_and_gets_their_results(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with server("good", only=["add"]).session() as session:
        assert [each["function"]["name"] for each in session.schemas] == ["add"]
    async with server("good", env={"SHOP": "here"}, without=["refuse", "pid"]).session() as session:

        async def said(name: str, arguments: str = "") -> str:
            return (await session.call(name, arguments)).content

        assert len(session.schemas) == 6
        add, first, second, *_ = (each["function"] for each in session.schemas)
        assert add["description"] == "Add to the count."
        assert add["parameters"]["properties"] == {"amount": {"type": "integer"}}
        assert [await said("add", f'{{"amount": {n}}}') for n in (2, 3)] == ["2", "5"]
        assert (first["name"], second["name"]) == ("shop_orders_list", "shop_orders_list_2")
        assert [await said(each["name"]) for each in (first, second)] == ["shop.orders/list", "shop_orders_list"]
        assert await said("picture") == "[image image/png, 3 bytes, not shown]"
        assert json.loads(await said("table")) == {"rows": [1, 2]}
        seen = json.loads(await said("environment"))
    assert ("OPENAI_API_KEY" in seen, "SHOP" in seen) == (False, True)


@pytest.mark.parametrize(
    ("kind", "tool", "arguments", "said"),
    [
        ("good", "refuse", "{}", "not today"),
        ("good", "add", '{"amount": "two"}', "amount must be a number"),
        ("good", "add", "{", "not valid JSON"),
        ("good", "add", "[1]", "must be a JSON object"),
        ("good", "missing", "{}", "there is no tool 'missing'"),
        ("odd", "add", '{"amount": 1}', "cannot be read"),
        ("slow", "add", '{"amount": 1}', "did not answer within 2 s"),
    ],
)
async def test_a_bad_call_is_a_tool_error_and_a_slow_server_is_ended(kind: str, tool: str, arguments: str, said: str):
    started = time.monotonic()
    async with server(kind, call_seconds=2).session() as session:
        result = await session.call(tool, arguments)
    assert result.error
    assert said in result.content
    assert time.monotonic() - started < 25


@pytest.mark.parametrize("command", [["no-such-command-anywhere"], ["/"], [sys.executable, "-c", "print('hello')"]])
async def test_a_server_that_cannot_be_started_is_told(command: list[str]):
    with pytest.raises(McpError, match=r"cannot be used(.|\n)*Start it by hand"):
        async with mcp(command).session():
            pass


async def test_a_cancelled_episode_leaves_no_server_behind():
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None) as limit, server("good").session() as session:
            pid = int((await session.call("pid", "")).content)
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(60)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


COUNT = Task(user="Count.")
LISTED = ["echo", "fall", "wait", "lose"]


def weigh(what: str) -> int:
    return 5


async def play(kind: str, *steps: Step, **options: Any) -> Trajectory:
    counting = Scenario("counting", tools=[weigh, server(kind, **options)], tasks=[COUNT], held_out=0)
    return await rollout(scripted(*steps), counting, COUNT)


async def test_episodes_at_once_use_servers_of_their_own_beside_functions():
    steps = ("add", {"amount": 2}), ("weigh", {"what": "it"}), ("add", {"amount": 3}), "Five."
    for episode in await asyncio.gather(*(play("chatty", *steps) for _ in range(3))):
        assert episode.status == "finished", episode.status_reason
        answers = [message["content"] for message in episode.messages() if message["role"] == "tool"]
        assert answers == ["2", "5", "5"]
        assert {"weigh", "add"} <= {tool["function"]["name"] for tool in episode.tools or ()}


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("dies", {}, "is lost; it printed: …out of luck"),
        ("exits", {}, "no database at shop.db"),
        ("bare", {}, "has no tools"),
        ("silent", {"start_seconds": 0.3}, "did not begin a session within 0.3 s"),
        ("good", {"only": ["subtract"]}, "has no tool 'subtract'"),
    ],
)
async def test_a_server_that_fails_costs_its_own_episode(kind: str, options: dict[str, Any], reason: str):
    failed, well = await asyncio.gather(
        play(kind, ("add", {"amount": 2}), "Two.", **options), play("chatty", ("add", {"amount": 2}), "Two.")
    )
    assert failed.status == "failed"
    assert reason in (failed.status_reason or "")
    assert well.status == "finished"


class Listed(ToolWorld):
    """A world whose server lists its tools."""

    async def reset(self, task: Task) -> None:
        about = {"description": "", "parameters": {"type": "object"}}
        self.schemas = [{"type": "function", "function": {"name": name, **about}} for name in LISTED]

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Has a docstring, and is no tool."""
        match name:
            case "fall":
                raise OSError("the floor is gone")
            case "wait":
                await asyncio.sleep(60)
            case "lose":
                raise GavelError("the server is lost")
        return ToolResult(arguments)


async def test_a_world_may_list_its_tools_once_it_is_reset():
    steps = ("echo", {"a": 1}), ("fall", {}), ("wait", {}), ("call", {}), ("lose", {})
    scenario = Scenario("listed", environment=Listed, tasks=[COUNT], held_out=0, call_seconds=0.05)
    episode = await rollout(scripted(*steps), scenario, COUNT)
    assert [each["function"]["name"] for each in episode.tools or ()] == LISTED
    answers = [message["content"] for message in episode.messages() if message["role"] == "tool"]
    for told, answer in zip(('{"a": 1}', "the floor is gone", "within 0.05 s", "no tool 'call'"), answers, strict=True):
        assert told in answer
    assert (episode.status, episode.status_reason) == ("failed", "the server is lost")
