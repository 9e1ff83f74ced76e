"""A scenario served on loopback, in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from gavel.integrations.agentgym.server import create_app
from gavel.scenarios.scenario import Scenario


@contextmanager
def served(scenario: Scenario, **options: Any) -> Iterator[str]:
    """The address of the scenario over AgentGym's protocol."""
    started, addresses = threading.Event(), list[str]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(create_app(scenario, **options))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()
