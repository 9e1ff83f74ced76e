"""What the calls of a set of clients are doing now: how many run, and how long a rate limit holds them up.

    activity.waiting    "rate limited, 20 s", or "" while no call waits

Calls of several threads may report to one activity.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

_WORTH_TELLING = 1.0
"""Seconds from which a wait is shown."""


class Activity:
    """Counts of calls, for a live line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[object, float] = {}
        """When each waiting call goes on, by `time.monotonic`."""

    @contextmanager
    def rate_limited(self, seconds: float) -> Generator[None]:
        """Inside, one call waits `seconds` for a rate limit."""
        wait = object()
        with self._lock:
            self._waits[wait] = time.monotonic() + seconds
        try:
            yield
        finally:
            with self._lock:
                del self._waits[wait]

    @property
    def waiting(self) -> str:
        """The longest wait for a rate limit that is left, in words."""
        with self._lock:
            left = max(self._waits.values(), default=0.0) - time.monotonic()
        return f"rate limited, {left:.0f} s" if left >= _WORTH_TELLING else ""
