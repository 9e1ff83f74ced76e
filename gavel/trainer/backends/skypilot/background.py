"""Blocking calls beside an event loop, in threads that do not keep the process alive: a call may hang in a network."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_background(call: Callable[[], T], seconds: float) -> T:
    """What `call` gives. Raises `TimeoutError`; the call itself then goes on, and nobody hears of it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = call()
        except StopIteration as stopped:  # no future takes one
            error = RuntimeError(f"the call ended with {stopped!r}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, daemon=True, name="gavel-cluster").start()
    return await asyncio.wait_for(done, seconds)
