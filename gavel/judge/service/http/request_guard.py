"""What every request passes: checks against other sites' pages, headers of security, and the clock of the metrics.

A service without keys answers whoever reaches its port, and a browser on the same machine reaches it: pages of other
sites are refused by their origin, and names that were pointed at this machine by the Host header.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gavel.base.network import is_loopback
from gavel.judge.service.engine.metrics import Metrics
from gavel.judge.service.errors import without_text
from gavel.judge.service.http.late_answer import Later, late_answer_of, late_response, leave
from gavel.judge.service.http.problems import Problem

_LOG = logging.getLogger(__name__)
_STRICT_POLICY = "default-src 'none'; frame-ancestors 'none'"
_DOCS_POLICY = (
    "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; img-src data: https://fastapi.tiangolo.com; "
    "script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline' https://cdn.jsdelivr.net"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


_ONCE = ("Authorization", "X-API-Key", "Idempotency-Key")
"""Of two of these, one would be ignored in silence."""


class _Answer:
    """Sends an answer with headers of security, and notes its status."""

    __slots__ = ("_path", "_send", "is_begun", "status")

    def __init__(self, send: Send, path: str) -> None:
        self._send, self._path = send, path
        self.status, self.is_begun = 500, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.is_begun = message["status"], True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            policy = _DOCS_POLICY if self._path == "/docs" else _STRICT_POLICY
            headers.setdefault("Content-Security-Policy", policy)
        await self._send(message)


async def _failed(error: Exception, answer: _Answer, scope: Scope, receive: Receive) -> None:
    """Answers a request that failed, or ends an answer that has begun."""
    _LOG.error("a request failed with %s", type(error).__name__, exc_info=without_text(error))
    if answer.is_begun:  # the connection is closed, so that the answer does not pass for a whole one
        raise RuntimeError(type(error).__name__) from None
    problem = Problem(500, "internal", f"an internal error: {type(error).__name__}.", "Look at the service's log.")
    await problem.response()(scope, receive, answer)


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, metrics: Callable[[], Metrics | None], loopback_only: Callable[[], bool]) -> None:
        """`loopback_only`: requests must name this machine as their host, as those to a service without keys do."""
        self._app = app
        self._metrics = metrics
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, answer = time.perf_counter(), _Answer(send, scope["path"])
        inner: Scope = dict(scope)
        if scope["method"] == "HEAD" and not scope["path"].startswith("/v1/"):
            inner["method"] = "GET"  # the server leaves the body out; a GET under /v1/ may erase what it answers
        problem = self._problem(scope)
        try:
            if problem is not None:
                await problem.response()(scope, receive, answer)
            else:
                await self._app(inner, receive, answer)
        except Exception as error:
            await _failed(error, answer, scope, receive)
        route = getattr(inner.get("route"), "path", "") or "none"
        if (later := late_answer_of(inner)) is not None and not answer.is_begun:
            inner.clear()  # of what routing left there
            await leave(partial(self._late, later, route, started), scope, receive, send)
        else:
            self._count(route, answer, started)

    async def _late(self, later: Later, route: str, started: float, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send, scope["path"])
        try:
            await (await late_response(later, receive))(scope, receive, answer)
        except Exception as error:
            await _failed(error, answer, scope, receive)
        self._count(route, answer, started)

    def _count(self, route: str, answer: "_Answer", started: float) -> None:
        if (metrics := self._metrics()) is not None:
            metrics.answered(route, answer.status, time.perf_counter() - started)

    def _problem(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) > 1:
            return Problem(400, "host", "the request names several hosts.", "Send one Host header.")
        for name in _ONCE:
            if len(headers.getlist(name)) > 1:
                return Problem(400, "repeated-header", f"the request has several headers {name}.", "Send one of them.")
        is_old = not host and scope["http_version"] == "1.0"  # no browser, which names a host in every request
        if self._loopback_only() and not is_old and not is_loopback(_name(host)):
            return Problem(
                421,
                "host",
                f"this service has no keys and answers to this machine's own names only, not to {host:.100}.",
                "Ask 127.0.0.1, or make keys (gavel keys create).",
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return Problem(
                403, "origin", f"pages of {origin:.100} may not use this service.", "Ask it from a program instead."
            )
        return None


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
