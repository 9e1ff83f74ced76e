"""Runs plain (synchronous) functions of the user off the event loop, which they would block."""

import asyncio
import contextvars
import inspect
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

_T = TypeVar("_T")
_Outcome = tuple[Any, BaseException | None]


def is_async(function: Any) -> bool:
    """Whether a function is written with `async def`, looking through partials, wrappers and an object's `__call__`."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    written: Any = inspect.unwrap(function)
    return any(inspect.iscoroutinefunction(each) for each in (written, cast("Any", type(written)).__call__))


class PlainCalls:
    """Runs plain functions in one thread off the event loop. The thread starts with the first call."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._work.put, None)  # ends the thread of an object that nobody closes

    async def run(self, function: Callable[[], _T], *, must: bool = False) -> _T:
        """Returns or raises what the function does. If cancelled, a running function goes on in its thread; a waiting
        one is dropped.

        `must`: a waiting one is run all the same, once the thread is free.
        """
        if self._thread is None:
            # A daemon, since the program must not wait at its end for a hanging function.
            self._thread = threading.Thread(target=_run_all, args=[self._work], name="gavel-plain-calls", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[_Outcome] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            if asked.cancelled() and not must:
                return
            outcome = _outcome(context, function)
            try:
                loop.call_soon_threadsafe(_tell, asked, outcome)
            except RuntimeError:  # the loop is closed: nobody waits
                return

        self._work.put(work)
        result, error = await asked
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Ends the thread once it is idle."""
        self._work.put(None)


def _run_all(queue: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (work := queue.get()) is not None:
        work()


def _outcome(context: contextvars.Context, function: Callable[[], Any]) -> _Outcome:
    try:
        return context.run(function), None
    except BaseException as error:  # raised in the waiting task
        return None, error


def _tell(asked: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    if not asked.done():
        asked.set_result(outcome)
