"""A gate before the first request that is really sent to a model: one cheap question goes through it first.

A client asks the question when a reply is needed that no cassette holds, so a run that is replayed whole sends nothing.
Requests that come meanwhile wait for the answer, in whatever thread or event loop they are.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future


class Gate:
    """Of one client; open until it is shut."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: Future[None] | None = None
        self._is_taken = True

    def shut(self) -> None:
        """Lets the next request ask the question."""
        with self._lock:
            self._opened, self._is_taken = Future(), False

    async def passed(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Returns when the question was asked; the first that comes asks it. Raises what `ask` raises, to that one."""
        with self._lock:
            opened, is_first = self._opened, not self._is_taken
            self._is_taken = True
        if opened is None or opened.done():
            return
        if not is_first:
            await asyncio.wait([asyncio.wrap_future(opened)])
            return
        try:
            await ask()
        finally:
            opened.set_result(None)
