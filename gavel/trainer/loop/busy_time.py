"""The time during which at least one of many concurrent tasks was at work."""

import time


class BusyTime:
    """Seconds during which at least one task was inside this context manager."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._inside = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if not self._inside:
            self._since = time.monotonic()
        self._inside += 1

    def __exit__(self, *exception: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._seconds += time.monotonic() - self._since

    def lap(self) -> float:
        """The seconds since the last lap, including tasks that are still inside."""
        now = time.monotonic()
        seconds = self._seconds + (now - self._since if self._inside else 0.0)
        self._seconds, self._since = 0.0, now
        return seconds
