"""aiohttp applications on loopback, in the loop of the test or in a thread of their own."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web


@asynccontextmanager
async def running(app: web.Application, port: int = 0) -> AsyncGenerator[str]:
    """Serves the application; its URL."""
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def in_a_thread(app: web.Application, port: int = 0) -> Generator[str]:
    """The same, for a test that itself waits."""
    started: threading.Event = threading.Event()
    found: list[str] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with running(app, port) as url:
            found.append(url)
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()
