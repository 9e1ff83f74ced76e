"""One HTTP connection: closed when a request's headers do not arrive in time, also before its first request.

uvicorn bounds the time between two requests of a connection only.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 20.0


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection `HEADER_SECONDS` after its beginning, or after an answer, unless headers are complete."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._cancel()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._await_headers()
        super().on_response_complete()

    def _await_headers(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._close)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
