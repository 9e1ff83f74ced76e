"""aiohttp applications on loopback, in a thread of their own."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def in_a_thread(app: web.Application, port: int = 0) -> Generator[str]:
    """Serves the application; its URL."""
    started, over, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    runner = web.AppRunner(app, shutdown_timeout=1)

    async def serve() -> None:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            started.set()
            await over.wait()
        finally:
            await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()
