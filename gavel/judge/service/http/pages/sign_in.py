"""`/sign-in`: an API key becomes a session of the pages, in a cookie that scripts and other sites cannot use.

The cookie is not the key: it opens the pages for some hours and nothing of the API, and ends with the key. The key is
in the body of one request, never in an address.
"""

import re
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gavel.judge.service.engine.page_session import SECONDS
from gavel.judge.service.errors import UnauthorizedError
from gavel.judge.service.http.pages.html import page
from gavel.judge.service.http.pages.page_route import PageRoute
from gavel.judge.service.http.pages.viewer import COOKIE
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.http.request_body import read_bytes
from gavel.judge.service.http.route_access import TheEngine

router = APIRouter(include_in_schema=False, route_class=PageRoute)
_FORM_BYTES = 4096
_OWN_PAGE = re.compile(r"/(judgements/[\w-]{1,100})?(\?[!-~]{0,2000})?")
_FORM_TYPE = "application/x-www-form-urlencoded"


@router.get("/sign-in")
async def form(request: Request, engine: TheEngine, next: Annotated[str, Query(max_length=3000)] = "/") -> Response:
    """Asks for a key; where the service has none, there is nothing to ask."""
    if not engine.admission.is_required:
        return RedirectResponse("/", 303)
    return _form(request, _own_page(next))


@router.post("/sign-in")
async def sign_in(request: Request, engine: TheEngine) -> Response:
    """Gives the browser a session. 401 with the form again for a key that is not known."""
    _from_own_page(request)
    fields = await _fields(request)
    following = _own_page(fields.get("next", "/"))
    try:
        session = await engine.admission.sign_in(fields.get("key", "").strip())
    except UnauthorizedError as error:
        return _form(request, following, error)
    answer = RedirectResponse(following, 303)
    # Behind a proxy that ends TLS the request itself looks like plain HTTP; the browser says what it sees.
    scheme = urlsplit(request.headers.get("origin", "")).scheme or request.url.scheme
    answer.set_cookie(COOKIE, session, max_age=SECONDS, httponly=True, samesite="strict", secure=scheme == "https")
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Ends the browser's session."""
    _from_own_page(request)
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _form(request: Request, following: str, problem: UnauthorizedError | None = None) -> Response:
    status = 200 if problem is None else 401
    return page(request, "sign_in.html.j2", status=status, next=following, problem=problem, hours=SECONDS // 3600)


def _from_own_page(request: Request) -> None:
    """Raises `Problem` for a form of another site; the guard has compared the Origin, where there is one."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Problem(403, "origin", "pages of other sites may not sign in or out here.", "Open the service itself.")


async def _fields(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise Problem(415, "media-type", "the form's body is of another type.", "Use the form of the page.")
    limits = request.app.state.engine.config.limits.model_copy(update={"body_bytes": _FORM_BYTES})
    body = (await read_bytes(request, limits)).decode("utf-8", "replace")
    return {name: values[-1] for name, values in parse_qs(body).items()}


def _own_page(path: str) -> str:
    """The path where it is that of a page, else `/`."""
    return path if _OWN_PAGE.fullmatch(path) else "/"
