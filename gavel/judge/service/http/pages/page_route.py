"""Routes of pages: what is refused is told on a page too, and who has not signed in is asked to."""

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gavel.judge.service.errors import ServiceError, UnauthorizedError
from gavel.judge.service.http.pages.html import page
from gavel.judge.service.http.problems import Problem, problem_of


class PageRoute(APIRoute):
    """A route whose problems are HTML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except UnauthorizedError:
                return _without_session(request)
            except Problem as problem:
                return _problem_page(request, problem)
            except ServiceError as error:
                return _problem_page(request, problem_of(error))
            except RequestValidationError as error:
                first = error.errors()[0]
                detail = f"{first['loc'][-1]}: {first['msg']}"
                return _problem_page(request, Problem(422, "invalid-request", detail, "Correct the address."))

        return answer


def _problem_page(request: Request, problem: Problem) -> Response:
    return page(request, "problem.html.j2", status=problem.status, headers=problem.headers, problem=problem.body)


def _without_session(request: Request) -> Response:
    """To the form. A link on another site's page brings no cookie; the same page asked for by its own does."""
    if request.headers.get("sec-fetch-site") == "cross-site":
        return page(request, "again.html.j2")
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = "/sign-in" if path == "/" else f"/sign-in?{urlencode({'next': path})}"
    return RedirectResponse(where, 303)
