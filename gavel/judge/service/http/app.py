"""The HTTP application: routes, errors and headers around one engine, which lives as long as the application.

app = create_app(ServiceConfig())
"""

import asyncio
import contextlib
import gc
import linecache
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import jinja2
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gavel.base.network import is_loopback
from gavel.judge.errors import JudgeError
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import Problem, ServiceError, without_text
from gavel.judge.service.http import scores, wires
from gavel.judge.service.http.requests import ProblemOut, TheCaller, TheEngine, documented, response, validation_problem
from gavel.judge.service.schemas import MemberRequest, ScoreRequest
from gavel.judge.service.store.database import Database
from gavel.llm.errors import LlmError

_LOG = logging.getLogger(__name__)
_BODIES = (ScoreRequest, MemberRequest, *wires.BODIES, ProblemOut)
_OF_ANY = (400, 403, 421, 503)
"""Statuses that any request may get: repeated headers, a cross-site page, a foreign Host, no capacity."""
_OF_GROUPS = (*_OF_ANY, 401, 404, 408, 409, 413, 415, 422, 429, 502)
"""Statuses of routes that take or give groups."""
_ONCE = ("Host", "Authorization", "X-API-Key", "Idempotency-Key")
"""Headers that may occur only once: a second one would be ignored silently."""
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_GC_THRESHOLDS = 5_000, 100, 20
"""Thresholds of the garbage collector, whose runs stop the event loop: for two milliseconds every seventh group, and
every eight hundredth for 30, in which it finds a handful of objects that the short runs have left."""
_SWITCH_SECONDS = 0.001
"""Seconds until a computing thread yields the interpreter. The database's thread needs it about ten times for a
transaction, and each time waits as long for a busy event loop."""
_DESCRIPTION = """Scores groups of agent trajectories with a language model as the judge.

Every accepted group is stored first, and judged even when the connection ends. Refusals are problems of RFC 9457."""
health = APIRouter(tags=["health"], default_response_class=PlainTextResponse)


def create_app(config: ServiceConfig, parent: int | None = None) -> FastAPI:
    """Creates the application. Its lifespan opens the database and runs an engine, until SIGTERM or SIGINT.

    `parent`: process id of a supervisor; the application ends when it does.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        database = await asyncio.to_thread(Database.open, config.database)
        try:
            app.state.engine = engine = Engine(config, database)
            await engine.start()
            if parent is not None:
                settle_process()
                threading.Thread(target=_end_with, args=[parent], daemon=True).start()
            with _stop_at_signals(engine):
                try:
                    yield
                finally:
                    await engine.stop()
        finally:
            await asyncio.to_thread(database.close)

    app = FastAPI(
        title="Gavel",
        summary="The auto-reward service",
        description=_DESCRIPTION,
        version=version("gavel-rl"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.slime_samples = {}
    app.add_middleware(Guard, state=app.state, is_on_loopback=is_loopback(config.host))
    for router in (scores.router, wires.router):
        app.include_router(router, responses=documented(*_OF_GROUPS))
    app.include_router(health, responses=documented(*_OF_ANY))
    for kind in (ServiceError, JudgeError, LlmError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refuse)
    app.openapi = lambda: _described(app)
    return app


def settle_process() -> None:
    """Shortens the interpreter's pauses, once everything is loaded."""
    linecache.clearcache()  # frees two megabytes of sources from which the models' docstrings were read
    gc.collect()
    gc.freeze()  # exempts the libraries' 400,000 objects from collection
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_SECONDS)


@contextlib.contextmanager
def _stop_at_signals(engine: Engine) -> Generator[None]:
    """Tells the engine of a signal at once: the server tells the application only after all connections are closed."""
    loop, before = asyncio.get_running_loop(), dict[int, Any]()

    def stop(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(engine.begin_stopping)
        if callable(handler := before.get(number)):
            handler(number, frame)

    with contextlib.suppress(ValueError):  # not in the main thread, as a server in a test
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@health.get("/healthz", summary="Whether the process answers")
async def healthz() -> str:
    """`ok` as long as the process runs."""
    return "ok"


@health.get("/readyz", summary="Whether groups can be accepted")
async def readyz(engine: TheEngine) -> str:
    """`ok` when the database can be read and written, the judge can be asked, and the service is not stopping."""
    await engine.database.check(room=engine.config.limits.body_bytes)
    if engine.is_stopping:
        raise Problem(503, "stopping", "the service is stopping.", "Ask another process.", {"Retry-After": "5"})
    if (stopped := engine.judges.default.stopped) is not None:
        raise Problem(503, "judge-stopped", stopped.message, stopped.remedy)
    return "ok"


@health.get("/metrics", summary="Metrics for Prometheus", responses=documented(401, 429))
async def metrics(engine: TheEngine, _: TheCaller) -> Response:
    """Counters, gauges and histograms of all processes of this `gavel serve`."""
    engine.metrics.waiting(engine.counts, len(engine.waiters))
    content, media_type = engine.metrics.exposition()
    return Response(content, media_type=media_type)


@health.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The routes with their parameters and examples, out of /openapi.json; the page loads nothing."""
    source = Path(__file__).with_name("docs.html.j2").read_text()
    page = jinja2.Template(source, autoescape=True).render(request.app.openapi())
    return HTMLResponse(page, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})


async def _refuse(request: Request, error: Exception) -> Response:
    """The one place where errors become answers."""
    match error:
        case ServiceError():
            problem = error
        case JudgeError() | LlmError():
            problem = Problem(502, "judge-failed", error.message, error.remedy)
        case RequestValidationError():
            problem = validation_problem(error.errors())
        case HTTPException():
            problem = _routing_problem(request, error)
        case _:
            raise error
    return response(problem)


def _routing_problem(request: Request, error: HTTPException) -> Problem:
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router names the methods of the first route with this path
        routes = [each for router in (scores.router, wires.router, health) for each in router.routes]
        here = [each for each in routes if isinstance(each, Route) and each.path_regex.match(request.scope["path"])]
        headers["Allow"] = ", ".join(sorted({method for each in here for method in each.methods or ()}))
    kind = {404: "no-such-route", 405: "method"}.get(error.status_code, "http")
    return Problem(error.status_code, kind, f"{error.detail}.", "GET /openapi.json lists the routes.", headers)


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: FastAPI's, with the models of bodies that routes read themselves."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
        )
        models: list[tuple[type[BaseModel], Any]] = [(model, "validation") for model in _BODIES]
        _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
        components = app.openapi_schema.setdefault("components", {}).setdefault("schemas", {})
        components |= schemas.get("$defs", {})
    return app.openapi_schema


class Guard:
    """ASGI middleware: rejects cross-site requests and repeated headers, adds security headers, counts requests.

    A service without keys answers everyone who reaches its port, including a browser on the same machine: cross-site
    pages are rejected by their Origin, and DNS names rebound to this machine by the Host header.
    """

    def __init__(self, app: ASGIApp, state: Any, is_on_loopback: bool) -> None:
        self._app = app
        self._state = state
        self._is_on_loopback = is_on_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                message["headers"] += [header for header in _HEADERS if header[0] not in own]
            await send(message)

        inner: Scope = dict(scope)
        if scope["method"] == "HEAD":
            inner["method"] = "GET"  # the server drops the body
        try:
            if (problem := self._find_refusal(Headers(scope=scope), scope["http_version"])) is not None:
                await response(problem)(scope, receive, answer)
            else:
                await self._app(inner, receive, answer)
        except Exception as error:
            _LOG.error("a request failed with %s", type(error).__name__, exc_info=without_text(error))
            if status:  # the connection is closed, so that the response is not taken for complete
                raise RuntimeError(type(error).__name__) from None
            failed = Problem(500, "internal", f"an internal error: {type(error).__name__}.", "Look at the log.")
            await response(failed)(scope, receive, answer)
        finally:
            route = getattr(inner.get("route"), "path", "") or "none"
            self._state.engine.metrics.answered(route, status or 500, time.perf_counter() - started)

    def _find_refusal(self, headers: Headers, http_version: str) -> Problem | None:
        for name in _ONCE:
            if len(headers.getlist(name)) > 1:
                return Problem(400, "repeated-header", f"the request has several headers {name}.", "Send one of them.")
        host, origin = headers.get("host", ""), headers.get("origin")
        is_old = not host and http_version == "1.0"  # not a browser, which sends Host with every request
        is_elsewhere = self._is_on_loopback and not is_old and not _is_of_this_machine(host)
        if is_elsewhere and not self._state.engine.admission.is_required:
            return Problem(
                421,
                "host",
                f"this service has no keys and answers to this machine's own names only, not to {host:.100}.",
                "Ask 127.0.0.1, or make keys (gavel keys create).",
            )
        if origin is not None and urlsplit(origin).netloc != host:
            return Problem(
                403, "origin", f"pages of {origin:.100} may not use this service.", "Ask it from a program instead."
            )
        return None


@lru_cache(1024)
def _is_of_this_machine(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
