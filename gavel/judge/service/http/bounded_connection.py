"""One HTTP connection, bounded where uvicorn leaves it open.

    head     complete some seconds after the connection's beginning, or a request's first byte; else it is closed
    framing  the bytes that are no body (head, chunk sizes, trailers): 64 KiB, and a few for each byte of body; else 431
    answer   a client that reads nothing of it for a minute is cut off

What is not HTTP/1.1 is refused with a problem. An offer to speak another protocol is ignored: Java's client makes one
for HTTP/2 with its first request, whose body the parser would drop.
"""

import asyncio
import re
from http import HTTPStatus
from typing import Any, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl, service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gavel.judge.service.http.handover import Handover
from gavel.judge.service.http.late_answer import LATE
from gavel.judge.service.http.problems import MEDIA_TYPE, Problem

_MAX_FRAMING = 64 * 2**10
_FRAMING_OF_A_BYTE = 8
"""A chunk of one byte has five bytes more; some clients pad the size with zeros."""
_STALLED_SECONDS = 60.0
_LINGERING_SECONDS = 5.0
_OFFER = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"


class _Pipeline(list[Any]):
    """Requests that wait for the answer before theirs: an empty deque takes 700 bytes."""

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)


class _Flow(FlowControl):
    """Has an event only while writing is paused: one takes 700 bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._resumed: asyncio.Event | None = None

    async def drain(self) -> None:
        if self._resumed is not None:
            await self._resumed.wait()

    def pause_writing(self) -> None:
        if not self.write_paused:
            self.write_paused, self._resumed = True, asyncio.Event()

    def resume_writing(self) -> None:
        if self._resumed is not None:
            self._resumed.set()
        self.write_paused, self._resumed = False, None


class _Lingering:
    """The transport of an answer after which the connection ends: it closes once the request's body has come.

    What is closed before is reset by the system, and a client that is still sending loses the answer.
    """

    def __init__(self, connection: "BoundedConnection") -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)

    def close(self) -> None:
        self._connection.close_after_body()


class BoundedConnection(HttpToolsProtocol):
    """A connection of `bounded_connection`."""

    __slots__ = (
        "_answered",
        "_between_requests",
        "_body",
        "_counts",
        "_deadline",
        "_first",
        "_head",
        "_is_last",
        "_received",
        "_stalled",
    )  # beside them, uvicorn's fit a dictionary that shares its keys: 1.2 KiB less for each connection
    _header_seconds = 20.0
    _handover: Handover | None = None

    def __init__(self, *arguments: Any, first: bytes = b"", **options: Any) -> None:
        """`first`: what another process has read of the connection."""
        super().__init__(*arguments, **options)
        self._first = first
        self._counts = bool(first)
        """Whether its request counts as one that this process works on."""
        self.pipeline: Any = _Pipeline()
        self._deadline: asyncio.TimerHandle | None = None
        """When the head must be complete."""
        self._stalled: asyncio.TimerHandle | None = None
        """When the client must have read something."""
        self._is_last = False
        """Whether the connection ends when the request has come."""
        self._answered = False
        """Whether the next byte begins another request."""
        self._between_requests = True
        """Whether the parser has seen the end of a request, and nothing of the next one."""
        self._received = self._body = 0
        """Bytes of the request so far: all of them, and those of its body."""
        self._head = 0
        """Bytes of its address and headers so far, also where the whole request came at once."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._await_headers()
        if first := self._first:
            self._first = b""
            self._read(first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_longer_counts()
        self._cancel()
        self._cancel_stalled()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._handover is not None and self._is_handed_over(self._handover, data):
            self.transport.abort()  # closes this process's descriptor, not the connection
        else:
            self._read(data)

    def _is_handed_over(self, handover: Handover, data: bytes) -> bool:
        is_idle = self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]
        if not (is_idle and self._between_requests) or self.transport.get_write_buffer_size():
            return False
        connection = self.transport.get_extra_info("socket")
        return handover.hand_over(connection.fileno(), data)

    def _read(self, data: bytes) -> None:
        if self._answered:
            self._answered = False
            self._await_headers()
        if self._between_requests:
            data = _without_offer(data)
        self._received += len(data)
        super().data_received(data)
        if self._received > _MAX_FRAMING + (1 + _FRAMING_OF_A_BYTE) * self._body:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        self._received = self._body = self._head = 0
        self._between_requests = False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel()
        if self._head > _MAX_FRAMING:
            raise ValueError("the headers are too large")
        if self.parser and self.parser.should_upgrade():  # CONNECT, or an offer whose headers came in pieces
            raise ValueError("the request asks for another protocol")
        if self._handover is not None:
            self._begin_to_count(self._handover)
        super().on_headers_complete()
        if not self.cycle.keep_alive:
            self.cycle.transport = cast("asyncio.Transport", _Lingering(self))

    def _begin_to_count(self, handover: Handover) -> None:
        if not self._counts:
            self._counts = True
            handover.begin()
        scope: Any = self.scope
        scope[LATE] = self._no_longer_counts

    def _no_longer_counts(self) -> None:
        if self._handover is not None and self._counts:
            self._counts = False
            self._handover.end()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between_requests = True
        super().on_message_complete()
        if self._is_last:
            self._close()

    def close_after_body(self) -> None:
        """Closes the connection when the rest of the body has come and is dropped, or some seconds later."""
        if self._between_requests:
            self._close()
        elif not self._is_last:
            self._is_last = True
            self.loop.call_later(_LINGERING_SECONDS, self._close)

    def on_response_complete(self) -> None:
        self._no_longer_counts()
        self._answered = True
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(_STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_stalled()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        super()._start_asgi_task(cycle, _TOO_MANY if app is service_unavailable else app)

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser cannot read."""
        if max(self._head, self._received - self._body) > _MAX_FRAMING:
            self._refuse(_too_large())
            return
        self._refuse(Problem(400, "not-http", "the request is not HTTP/1.1.", "Send it in HTTP/1.1, without Upgrade."))

    def _refuse(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        body = bytes(problem.response().body)
        head = (
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        if not self.cycle or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(head.encode() + body)
        self._close()

    def _await_headers(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(self._header_seconds, self._close)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _close(self) -> None:
        """Closes the connection once the client has read what was sent, if it does so in time."""
        if not self.transport.is_closing():
            self.transport.close()
            self.loop.call_later(_STALLED_SECONDS, self.transport.abort)


def _too_large() -> Problem:
    return Problem(
        431,
        "headers-too-large",
        f"the address and the headers are larger than {_MAX_FRAMING:,} bytes.",
        "Send a shorter address, fewer and shorter headers, and a body in chunks of more than a few bytes.",
    )


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers where the service has as many connections as it may have."""
    problem = Problem(
        503,
        "too-many-connections",
        "the service has as many connections as it may have.",
        "Send it again, use fewer connections, or raise the service's setting limits.connections.",
        {"Retry-After": "1", "Connection": "close"},
    )
    await problem.response()(scope, receive, send)


_TOO_MANY: Any = _too_many
"""uvicorn has types of its own for the same messages."""


def bounded_connection(header_seconds: float, handover: Handover | None = None) -> type[BoundedConnection]:
    """The connections of one server. `handover`: to the other processes that serve on its port."""
    settings = {"_header_seconds": header_seconds, "_handover": handover}
    return type("BoundedConnection", (BoundedConnection,), settings)


def _without_offer(data: bytes) -> bytes:
    """The beginning of a request without its Upgrade headers."""
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, end, rest = data.partition(_END_OF_HEAD)
    return _OFFER.sub(b"", head) + end + rest
