"""The HTTP application: routes, limits and problems around one engine.

app = create_app(ServiceConfig())             # opens its database when it starts
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from gavel.base.network import is_loopback
from gavel.judge.errors import JudgeError
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.engine.metrics import Metrics
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.late_answer import Application
from gavel.judge.service.http.openapi import describe
from gavel.judge.service.http.pages import assets, group_page, list_page, sign_in
from gavel.judge.service.http.problems import OF_NAMES, Problem, ProblemOut, documented, problem_of, told
from gavel.judge.service.http.request_body import SHOWN_ERRORS
from gavel.judge.service.http.request_guard import Guard
from gavel.judge.service.http.routes import batch, groups, health, judgements, nemo_gym, ors, score, slime
from gavel.judge.service.schemas.bodies import MemberRequest, ScoreRequest
from gavel.judge.service.store.database import Database
from gavel.llm.errors import LlmError

_ROUTES = (score, batch, groups, judgements, nemo_gym, slime, ors)
_PAGES = (assets, sign_in, list_page, group_page)
_BODIES = (
    ScoreRequest,
    MemberRequest,
    ors.OrsScoreGroup,
    nemo_gym.NemoVerify,
    nemo_gym.NemoCompare,
    slime.SlimeSamples,
)
_OF_ANY = (400, 403, 421, 431, 503)
"""Any request may be refused: no HTTP, a page of another site, a name of another machine, large headers, no room."""
_DESCRIPTION = """Scores groups of agent trajectories with a language model as the judge.

Every accepted group is stored first, and judged even when the connection ends. Refusals are problems of RFC 9457."""


def create_app(config: ServiceConfig, engine: Engine | None = None) -> FastAPI:
    """The application around an engine that runs; without one it makes its own when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        database = Database.open(config.database)
        try:
            app.state.engine = engine = Engine(config, database)
            await engine.start()
            try:
                yield
            finally:
                await engine.stop()
        finally:
            database.close()

    app = Application(
        title="Gavel",
        summary="The auto-reward service",
        description=_DESCRIPTION,
        version=version("gavel-rl"),
        lifespan=None if engine else lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.engine = engine
    app.state.places = slime.Places()

    def metrics() -> Metrics | None:
        engine: Engine | None = app.state.engine
        return None if engine is None else engine.metrics

    def loopback_only() -> bool:
        engine: Engine | None = app.state.engine
        return is_loopback(config.host) and (engine is None or not engine.admission.is_required)

    app.add_middleware(Guard, metrics=metrics, loopback_only=loopback_only)
    for routes in _ROUTES:
        app.include_router(routes.router, responses=documented(*_OF_ANY, 401, 429))
    app.include_router(health.router, responses=documented(*_OF_ANY))
    for pages in _PAGES:
        app.include_router(pages.router)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(JudgeError, _judge_error)
    app.add_exception_handler(LlmError, _judge_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    describe(app, *_BODIES, ProblemOut)
    return app


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _service_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return problem_of(error).response()


async def _judge_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, JudgeError | LlmError)
    return Problem(502, "judge-failed", error.message, error.remedy).response()


async def _invalid_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = told(error.errors()[:SHOWN_ERRORS])
    more: dict[str, Any] = {"errors": errors}
    first = f"{errors[0]['at']}: {errors[0]['message']}"
    return Problem(422, "invalid-request", first, "GET /openapi.json describes the request.", {}, more).response()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses by itself: a path or a method that is not there."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # the router names the methods of the first route with this path
        headers["Allow"] = ", ".join(sorted(_methods(request.scope["path"])))
    kind = {404: "no-such-route", 405: "method"}.get(error.status_code, "http")
    remedy = "GET /openapi.json lists the routes."
    if error.status_code == 404 and b"%2f" in request.scope.get("raw_path", b"").lower():
        return Problem(422, "invalid-request", f"{OF_NAMES}.", "Use another sign than / in names.").response()
    without = request.scope["path"].rstrip("/")
    if error.status_code == 404 and without != request.scope["path"] and _methods(without):
        remedy = f"It is {without}, without a slash at the end."
    return Problem(error.status_code, kind, f"{error.detail}.", remedy, headers).response()


def _methods(path: str) -> set[str]:
    """Those of all routes with this path."""
    routes = [route for each in (*_ROUTES, health, *_PAGES) for route in each.router.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.path_regex.match(path)]
    return {method for route in matching for method in route.methods or ()}
