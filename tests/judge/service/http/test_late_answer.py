"""Answers that are awaited once their route is over."""

import asyncio
import gc
import traceback
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from gavel.judge.service.engine.metrics import Metrics
from gavel.judge.service.errors import NotFoundError
from gavel.judge.service.http.late_answer import Application, LateAnswer
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.http.request_guard import Guard
from tests.limits import HANG_SECONDS


class Held:
    """Something that a request has while its route runs."""


def app_of(
    later: Callable[[], Coroutine[Any, Any, Response]],
    seen: list[Any] | None = None,
    kind: type[FastAPI] = Application,
) -> FastAPI:
    app = kind()
    metrics = Metrics()
    app.add_middleware(Guard, metrics=lambda: metrics, loopback_only=lambda: False)
    app.state.metrics = metrics

    @app.get("/{name}")
    async def route(name: str, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        request.state.held = held = Held()
        if seen is not None:
            seen.extend([weakref.ref(held), weakref.ref(request)])
        return LateAnswer(later)

    return app


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


@pytest.mark.parametrize("kind", [Application, FastAPI])
async def test_what_the_route_made_is_gone_while_the_answer_is_awaited(kind: type[FastAPI]):
    seen: list[Any] = []

    async def later() -> Response:
        gc.collect()
        return PlainTextResponse(str([each() for each in seen]))

    app = app_of(later, seen, kind)
    async with client_of(app) as client:
        answer = await client.get("/x")
    assert answer.text == "[None, None]"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert 'route="/{name}",status="200"' in app.state.metrics.exposition()[0].decode()


async def test_the_layers_of_the_application_are_over_while_the_answer_is_awaited():
    async def later() -> Response:
        files = [frame.filename for frame in traceback.extract_stack()]
        return PlainTextResponse(str([name for name in files if "starlette" in name or "routing" in name]))

    async with client_of(app_of(later)) as client:
        assert (await client.get("/x")).text == "[]"


@pytest.mark.parametrize("kind", [Application, FastAPI])
async def test_a_late_answer_that_fails_is_a_problem_of_the_service(kind: type[FastAPI]):
    async def later() -> Response:
        raise LookupError("what")

    async with client_of(app := app_of(later, kind=kind)) as client:
        answer = await client.get("/x")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:gavel:problem:internal")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert 'route="/{name}",status="500"' in app.state.metrics.exposition()[0].decode()


async def test_a_late_refusal_is_a_problem():
    errors = iter([NotFoundError("there is none.", "Make one."), Problem(502, "judge-failed", "no.")])

    async def later() -> Response:
        raise next(errors)

    async with client_of(app_of(later)) as client:
        answers = [await client.get("/x") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [404, 502]
    assert answers[0].json()["type"] == "urn:gavel:problem:not-found"


async def test_an_answer_for_nobody_is_given_up():
    """The client closes its connection while it waits."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def later() -> Response:
        began.set()
        try:
            await asyncio.sleep(HANG_SECONDS)
        finally:
            ended.set()
        raise AssertionError

    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        if (message := next(messages, None)) is not None:
            return message
        await began.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        del message

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "raw_path": b"/x",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "http_version": "1.1",
        "scheme": "http",
    }
    async with asyncio.timeout(HANG_SECONDS):
        await app_of(later)(scope, receive, send)
        await ended.wait()
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()
