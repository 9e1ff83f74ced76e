"""The released openenv's server behind `openenv:URL`."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytest.importorskip("openenv", reason="make test-bridges installs openenv")

from openenv.core.generic_client import GenericEnvClient

from gavel.base.network import free_port
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from tests.integrations.openenv.stand_in import HALVER
from tests.scenarios.scripts import scripted

pytestmark = [pytest.mark.bridges, pytest.mark.slow]
SERVER = Path(__file__).with_name("real_server.py")


@contextmanager
def real_server(kind: str, sessions: int) -> Generator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), kind, str(port), str(sessions)])
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            assert process.poll() is None
            try:
                httpx.get(f"http://127.0.0.1:{port}/health")
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


async def test_its_server_plays_64_episodes_on_four_sessions():
    with real_server("guess", 4) as url:
        scenario = await asyncio.to_thread(find_scenario, f"openenv:{url}?tasks=64&success=0.5")
        tasks = scenario.tasks()
        found = await asyncio.gather(*(rollout(HALVER, scenario, task, seed=1) for task in tasks))
        assert {each.status for each in found} == {"finished"}
        assert scenario.success is not None
        assert all(map(scenario.success, found))
        async with GenericEnvClient(base_url=url) as own:  # the same steps by its own client
            for task, ours in list(zip(tasks, found, strict=True))[:5]:
                await own.reset(**task.data["reset"])  # type: ignore[arg-type]
                rewards = [(await own.step(action)).reward or 0.0 for action in _numbers(ours)]
                assert sum(rewards) == pytest.approx(ours.metrics["raw_return"])


def _numbers(trajectory) -> list[dict[str, int]]:

    made = [call for choice in trajectory.choices() for call in choice.message.tool_calls or ()]
    return [json.loads(call.function.arguments) for call in made]


async def test_its_errors_are_told_to_the_agent():
    with real_server("guess", 2) as url:
        scenario = await asyncio.to_thread(find_scenario, f"openenv:{url}?turns=3")
        turns = [("act", {"number": "five"}), ("act", {"number": 99}), ("act", {"weight": 3})]
        found = await rollout(scripted(*turns), scenario, scenario.tasks()[0])
    assert found.status == "truncated"
    said = [message["content"] for message in found.messages() if message["role"] == "tool"]
    assert "number: Input should be a valid integer" in said[0]
    assert "out of range" in said[1]
    assert "weight: Extra inputs are not permitted" in said[2]


async def test_its_mcp_tools_are_the_agent_s_tools():
    with real_server("calculator", 2) as url:
        scenario = await asyncio.to_thread(find_scenario, f"openenv:{url}")
        turns = ("add", {"a": 20, "b": 22}), ("add", {"a": "x"}), ("fail", {}), "42"
        found = await rollout(scripted(*turns), scenario, scenario.tasks()[0])
    assert found.status == "finished"
    assert [tool["function"]["name"] for tool in found.tools or []] == ["add", "fail"]
    said = [message["content"] for message in found.messages() if message["role"] == "tool"]
    assert said[0] == "42"
    assert "valid integer" in said[1]
    assert "the tape is torn" in said[2]
    assert found.metrics["tool_errors"] == 2
