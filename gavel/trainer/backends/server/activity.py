"""When a server was last used, so that one on a machine that costs money can end itself."""

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send


class Activity:
    """Requests that are answered, and when the last one ended; a job that runs is work too."""

    def __init__(self) -> None:
        self._requests = 0
        self._last = time.monotonic()
        self.busy: Callable[[], bool] = lambda: False
        """Whether a job runs."""

    def begin(self) -> None:
        self._requests += 1

    def end(self) -> None:
        self._requests -= 1
        self._last = time.monotonic()

    def idle_seconds(self) -> float:
        """Since anything was done; 0 while something is."""
        if self._requests or self.busy():
            self._last = time.monotonic()
        return time.monotonic() - self._last

    async def wait_idle(self, seconds: float) -> None:
        """Returns when nothing was done for so long."""
        while (left := seconds - self.idle_seconds()) > 0:  # noqa: ASYNC110 - time itself is waited for
            await asyncio.sleep(min(left, max(seconds / 10, 0.05)))


class CountedRequests:
    """Stands behind the guard: a request without the key is no use of the server."""

    def __init__(self, app: ASGIApp, activity: Activity, uncounted: str) -> None:
        """`uncounted`: the path of the question whether the server is well."""
        self._app = app
        self._activity = activity
        self._uncounted = uncounted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == self._uncounted:
            return await self._app(scope, receive, send)
        self._activity.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            self._activity.end()
