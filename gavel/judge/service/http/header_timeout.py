"""One HTTP connection: closed when a request's headers do not arrive in time, also before its first request.

uvicorn bounds the time between two requests of a connection only.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class BoundedConnection(HttpToolsProtocol):
    """Closes a connection whose headers are not complete some time after its beginning, or a request's first byte."""

    _header_seconds = 20.0
    _deadline: asyncio.TimerHandle | None = None
    _answered = False
    """Whether the next byte begins another request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            self._answered = False
            self._await_headers()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._cancel()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._answered = True
        super().on_response_complete()

    def _await_headers(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(self._header_seconds, self._close)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def bounded_connection(header_seconds: float) -> type[BoundedConnection]:
    """The connections of one server."""
    return type("BoundedConnection", (BoundedConnection,), {"_header_seconds": header_seconds})
