"""`gavel serve-env`, and what it serves."""

import asyncio
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.forked import gavel, start_gavel


@pytest.mark.slow
def test_a_served_scenario_is_checked_from_elsewhere_and_ends_at_a_signal(tmp_path: Path) -> None:
    server = start_gavel("serve-env", "returns_desk", "--port", "0", cwd=tmp_path)
    try:
        server.wait_for("gavel check agentgym:http://")
        (url,) = re.findall(r"gavel check agentgym:(\S+)", server.stdout)
        checked = gavel("check", f"agentgym:{url}", cwd=tmp_path)
        assert checked.returncode == 0, checked.stderr
        assert "look_up_order" in checked.stdout
    finally:
        server.send(signal.SIGTERM)
        ended = server.end()
    assert ended.returncode == 0, ended.stderr
    gone = gavel("check", f"agentgym:{url}", cwd=tmp_path)
    assert gone.returncode == 1
    assert "does not answer" in gone.stderr
    assert "Traceback" not in gone.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "there is no scenario 'nonsense'"),
        (["returns_desk", "--host", "0.0.0.0"], "GAVEL_ENV_KEY"),
        (["returns_desk", "--host", "256.1.1.1"], "cannot listen"),
    ],
)
def test_what_cannot_be_served_is_told(arguments: list[str], told: str, tmp_path: Path) -> None:
    refused = gavel("serve-env", *arguments, cwd=tmp_path, **({"GAVEL_ENV_KEY": "k"} if "256" in arguments[-1] else {}))
    assert refused.returncode == 1
    assert told in refused.stderr


@pytest.mark.slow
def test_the_same_over_openenv_s_protocol(tmp_path: Path) -> None:
    server = start_gavel("serve-env", "returns_desk", "--openenv", "--port", "0", cwd=tmp_path)
    try:
        server.wait_for("gavel check openenv:http://")
        (url,) = re.findall(r"gavel check openenv:(\S+)", server.stdout)
        checked = gavel("check", f"openenv:{url}?tasks=20", cwd=tmp_path)
        assert checked.returncode == 0, checked.stderr
        assert "look_up_order" in checked.stdout

        async def stay() -> int:
            async with aiohttp.ClientSession(url) as client, client.ws_connect("/ws") as socket:
                await socket.send_json({"type": "reset", "data": {}})
                assert (await socket.receive_json())["type"] == "observation"
                server.send(signal.SIGTERM)
                return (await asyncio.to_thread(server.end)).returncode

        assert asyncio.run(stay()) == 0, server.stderr  # a client that stays does not keep the server
    except BaseException:
        server.send(signal.SIGKILL)
        raise
    gone = gavel("check", f"openenv:{url}", cwd=tmp_path)
    assert gone.returncode == 1
    assert "cannot be reached" in gone.stderr
    assert "Traceback" not in gone.stderr
