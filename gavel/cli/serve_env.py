"""`gavel serve-env`: a scenario behind a protocol of environments."""

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gavel.base.errors import GavelError
from gavel.base.network import is_loopback
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import scenario_named
from gavel.cli.terminal import silence_libraries

if TYPE_CHECKING:
    from aiohttp import web

    from gavel.scenarios.scenario import Scenario

Protocol = Literal["AgentGym", "OpenEnv"]
KEY_VARIABLE = "GAVEL_ENV_KEY"


def serve_env(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario, file.py, or an address: as for gavel train.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 36001,
    host: Annotated[
        str, typer.Option(help=f"Address to listen on. Beyond this machine, {KEY_VARIABLE} must hold a key.")
    ] = "127.0.0.1",
    most: Annotated[int, typer.Option("--most", min=1, help="Environments that may be open at once.")] = 256,
    idle_minutes: Annotated[
        float, typer.Option(min=0.01, help="After which an environment that nobody asks for is ended.")
    ] = 15.0,
    openenv: Annotated[
        bool, typer.Option("--openenv", help="Speak OpenEnv's protocol (WebSocket /ws, MCP) in place of AgentGym's.")
    ] = False,
) -> None:
    """Serve a scenario to AgentGym's or OpenEnv's clients, and to gavel train agentgym:URL or openenv:URL elsewhere.

    AgentGym's clients create environments, reset them to a task by its number, and send actions as text (Thought and
    Action, or a call as JSON); OpenEnv's send JSON over a WebSocket. Nothing is sampled or judged here.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    if key is None and not is_loopback(host):
        raise GavelError(
            f"--host {host} would let anyone in: {KEY_VARIABLE} is not set.",
            f"Set it to a long secret, here and for gavel train: export {KEY_VARIABLE}=$(openssl rand -hex 24)",
        )
    silence_libraries()
    asyncio.run(_serve(scenario, host, port, "OpenEnv" if openenv else "AgentGym", key, most, 60 * idle_minutes))


async def _serve(
    reference: str, host: str, port: int, protocol: Protocol, key: str | None, most: int, idle_seconds: float
) -> None:
    from aiohttp import web

    from gavel.trainer.serving.listener import address_of, listen

    scenario = scenario_named(reference)
    listener = listen(host, port)
    runner = web.AppRunner(_application(scenario, protocol, key, most, idle_seconds), access_log=None)
    await runner.setup()
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    try:
        await web.SockSite(runner, listener).start()
        url = address_of(listener, host)
        typer.echo(f"{scenario.name} · {url} · {protocol}'s protocol · Ctrl-C ends it")
        typer.echo(f"gavel check {protocol.lower()}:{url}")
        await ended.wait()
    finally:
        await runner.cleanup()


def _application(
    scenario: "Scenario", protocol: Protocol, key: str | None, most: int, idle_seconds: float
) -> "web.Application":
    if protocol == "OpenEnv":
        from gavel.integrations.openenv.server import OpenEnvService

        return OpenEnvService(scenario, sessions=most, idle_seconds=idle_seconds, key=key).app()
    from gavel.integrations.agentgym.server import create_app

    return create_app(scenario, key=key, most=most, idle_seconds=idle_seconds)


app = single_command(serve_env)
