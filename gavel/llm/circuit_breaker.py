"""A circuit breaker: after an error that every other request would meet too, nothing more is sent to the endpoint.

A wrong key, an empty account or an unknown model is then reported once, and costs one request instead of thousands.
After a minute a request may find out whether it is mended.
"""

import time

from gavel.llm.errors import NotAskedError, PermanentError

_SECONDS = 60.0


class Breaker:
    """Of one client."""

    def __init__(self) -> None:
        self._error: PermanentError | None = None
        self._opened = 0.0

    @property
    def error(self) -> PermanentError | None:
        """Why nothing is sent now."""
        return self._error if time.monotonic() < self._opened + _SECONDS else None

    def open(self, error: PermanentError) -> None:
        self._error, self._opened = error, time.monotonic()

    def close(self) -> None:
        """A request was answered."""
        self._error = None

    def check(self) -> None:
        """Raises `NotAskedError`, with the message of the error that opened it, while it is open."""
        if (error := self.error) is not None:
            raise NotAskedError(error.message, error.remedy) from error
