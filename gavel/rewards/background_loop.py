"""One event loop in a thread of its own, for reward hooks that are called without a loop, or in ever new ones.

    run(judge.score(group))          waits for the result, whatever the calling thread does otherwise
    await submitted(judge.score(group))    the same for an async hook

Connections belong to the loop that opened them, and trainers call their hooks from several threads and loops: here a
judge is asked on one loop for the life of the process.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_END_SECONDS = 5.0
"""At the end of the process, for tasks that are cancelled."""
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: a forked child has the loop's object, but no thread that runs it."""


def _in_forked_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_in_forked_child)


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
            thread = threading.Thread(target=loop.run_forever, name="gavel-rewards", daemon=True)
            thread.start()
            atexit.register(_end, os.getpid(), loop, thread)
        return loop


def _end(process: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Cancels what runs on the loop and stops it, so that nothing is torn down in the middle of its work."""
    if process != os.getpid():
        return

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(_END_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_END_SECONDS)
