"""One event loop in a thread of its own, for reward hooks that are called without a loop, or in ever new ones.

    run(judge.score(group))          waits for the result, whatever the calling thread does otherwise
    await submitted(judge.score(group))    the same for an async hook

Connections belong to the loop that opened them, and trainers call their hooks from several threads and loops: here a
judge is asked on one loop for the life of the process.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: a forked child has the loop's object, but no thread that runs it."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; an interrupt of the waiting thread cancels it."""
    future = _submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def submitted(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; cancelling the waiting task cancels it."""
    return await asyncio.wrap_future(_submit(work))


def _submit(work: Coroutine[Any, Any, T]) -> "Future[T]":
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="gavel-rewards", daemon=True).start()
        return loop
