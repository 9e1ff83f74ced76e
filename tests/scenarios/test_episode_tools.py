"""Tools of MCP servers in an episode, with sessions that begin and end with it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.environment import ToolWorld, World
from gavel.scenarios.episode import Episode
from gavel.scenarios.mcp import mcp
from gavel.scenarios.rollout import episode_tools, rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Toolbox, ToolResult
from gavel.scenarios.trajectory import Trajectory

SERVER = Path(__file__).parent / "mcp_servers.py"
TASK = Task(user="Count.")


def weigh(what: str) -> int:
    """Weigh something."""
    return 5


async def play(kind: str, *steps: tuple[str, dict[str, Any]] | str, **options: Any) -> Trajectory:
    async def reply(request: ChatRequest) -> Message:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        step = steps[turn]
        if isinstance(step, str):
            return {"content": step}
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        return {"tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}

    server = mcp([sys.executable, str(SERVER), kind], **options)
    counting = Scenario("counting", system="Count.", tools=[weigh, server], tasks=[TASK], held_out=0)
    return await rollout(FunctionModel("counter", reply), counting, TASK)


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

    async def reset(self, task: Task) -> str:
        self.schemas = [
            {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
            for name in ("echo", "fall", "wait", "lose")
        ]
        return "Welcome."

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
    episode = Episode(Task(user="Go."))
    world = World(Listed, episode, 5)
    await world.reset()
    async with episode_tools(Toolbox(()), (), world, episode, 0.05) as tools:
        assert [schema["function"]["name"] for schema in tools.schemas] == ["echo", "fall", "wait", "lose"]
        assert await tools.call("echo", '{"a": 1}') == ToolResult('{"a": 1}')
        assert "the floor is gone" in (await tools.call("fall", "")).content
        assert "did not answer within 0.05 s" in (await tools.call("wait", "")).content
        assert (await tools.call("call", "")).error
        with pytest.raises(GavelError, match="the server is lost"):
            await tools.call("lose", "")
