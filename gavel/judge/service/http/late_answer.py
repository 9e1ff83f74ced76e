"""Answers that may take long: many requests wait for one at a time, and each is small while it does.

    return LateAnswer(lambda: answer_of(group))       # from a route; the response is awaited once the route is over

A route that waits holds what FastAPI made for it (requests, exit stacks, a dozen coroutines): two thirds of the memory
of a waiting connection. `Application` awaits the response outside of all its layers.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.disconnect import while_connected
from gavel.judge.service.http.problems import Problem, problem_of

Later = Callable[[], Coroutine[Any, Any, Response]]
LATE = "gavel.late"
"""In the scope of a request: what is called when it does nothing any more but wait."""
_KEY = "gavel.late_answer"
_LEFT = "gavel.left"
"""In the scope of a request."""


class Application(FastAPI):
    """FastAPI whose late answers are awaited when all its layers are over."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_LEFT] = left = list[ASGIApp]()
        await super().__call__(scope, receive, send)
        if left:
            if waits := scope.pop(LATE, None):
                waits()
            headers: Any = scope["headers"]  # read by nobody from here on; the server keeps the list
            if isinstance(headers, list):
                headers.clear()
            await left.pop()(scope, receive, send)


class LateAnswer(Response):
    """Stands for the response that `later` gives. It is ended when the client closes the connection."""

    def __init__(self, later: Later) -> None:
        super().__init__()
        self._later = later

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = self._later


def late_answer_of(scope: Scope) -> Later | None:
    """What the request's route has left to be awaited."""
    return scope.get(_KEY)


async def leave(answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Leaves an answer to the `Application` around; without one it is given at once."""
    if (left := scope.get(_LEFT)) is None:
        await answer(scope, receive, send)
    else:
        left.append(answer)


async def late_response(later: Later, receive: Receive) -> Response:
    """The response, or the problem in its place."""
    try:
        return await while_connected(receive, later())
    except Problem as problem:
        return problem.response()
    except ServiceError as error:
        return problem_of(error).response()
