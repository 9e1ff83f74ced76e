"""The thread in which an episode's plain functions run, one after another, so that none holds up other episodes.

A function that does not end keeps its thread and costs its own episode: who waits for it has a deadline, and what is
called behind it is not begun, unless it must be. The thread ends with the program at the latest.
"""

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Outcome = tuple[Any, BaseException | None]


class PlainCalls:
    """Runs plain functions off the event loop. Its thread begins with the first of them."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._work.put, None)  # the thread of one that nobody closes ends too

    async def run(self, function: Callable[[], _T], *, must: bool = False) -> _T:
        """What the function gives, or raises. Cancelled, it goes on in its thread, or is not begun.

        `must`: it is begun all the same, once the thread is free.
        """
        if self._thread is None:
            # A daemon, since the program must not wait at its end for a function that hangs.
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
        """Ends the thread once it has nothing to do."""
        self._work.put(None)


def _run_all(queue: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (work := queue.get()) is not None:
        work()


def _outcome(context: contextvars.Context, function: Callable[[], Any]) -> _Outcome:
    try:
        return context.run(function), None
    except BaseException as error:  # raised where the function is waited for
        return None, error


def _tell(asked: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    if not asked.done():
        asked.set_result(outcome)
