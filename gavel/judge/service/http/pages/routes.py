"""The HTML pages: recent judgements at `/`, one group at `/judgements/{id}`, and the API at `/docs`.

Pages are read-only and load nothing from other hosts. Jinja escapes every text, no template is built from one, and the
content security policy allows only the service's own scripts. The pages work without scripts.

If the service has keys, `/sign-in` exchanges one for a session cookie that scripts and other sites cannot use. The key
is in the body of one request, never in a URL.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import APIRouter, Depends, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from gavel.judge.service.engine.admission import SESSION_SECONDS, Visitor
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import NotFoundError, Problem, ServiceError, UnauthorizedError
from gavel.judge.service.http.pages.views import FILTERS, ListFilter, member_rows
from gavel.judge.service.http.requests import TheEngine, address_of, read_body, response, validation_problem
from gavel.judge.service.schemas.bodies import STATUSES, ScoreRequest
from gavel.judge.service.schemas.records import Record
from gavel.scenarios.judgement import Judgement

COOKIE = "gavel_session"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "img-src 'self'; script-src 'self'; style-src 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}
"""Headers of pages. With `no-referrer`, which other responses have, browsers would hide the origin of the service's own
forms."""
_HERE = FilePath(__file__).parent
assets = StaticFiles(directory=_HERE / "assets")
"""Static files of the pages, at /assets."""
_LIST_SECONDS, _GROUP_SECONDS = 3, 1
"""Seconds between the script's polls of the newest page, and of an unfinished group."""
_OPEN_GROUPS = 20
"""Max open groups that are shown."""
_FORM_BYTES = 4096
_FORM_TYPE = "application/x-www-form-urlencoded"
_OWN_PAGE = re.compile(r"/(judgements/[\w-]{1,100})?(\?[!-~]{0,2000})?")


async def _viewer(request: Request) -> Visitor:
    engine: Engine = request.app.state.engine
    return await engine.admission.visitor(request.cookies.get(COOKIE, ""))


TheViewer = Annotated[Visitor, Depends(_viewer)]
"""Route parameter: the visitor. The page needs a session if the service has keys."""


class PageRoute(APIRoute):
    """A route whose problems are HTML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except UnauthorizedError:
                return _without_session(request)
            except ServiceError as error:
                return _problem_page(request, error)
            except (RequestValidationError, ValidationError) as error:
                return _problem_page(request, validation_problem(error.errors()))

        return answer


def _problem_page(request: Request, error: ServiceError) -> Response:
    headers = response(error).headers
    kept = {name: headers[name] for name in ("retry-after", "allow") if name in headers}
    return page(request, "problem.html.j2", status=error.status, headers=kept, problem=error.problem)


def _without_session(request: Request) -> Response:
    """Redirects to the login form."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    where = "/sign-in" if path == "/" else f"/sign-in?{urlencode({'next': path})}"
    return RedirectResponse(where, 303)


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: object
) -> Response:
    """The rendered template; 304 without a body if the browser's copy has the same content."""
    text = _environment().get_template(template).render({"viewer": None, **values})
    content = text.encode("utf-8", "replace")  # a lone surrogate cannot be encoded
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    sent = {**HEADERS, "ETag": tag, **(headers or {})}
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=sent)
    return Response(content, status, sent, "text/html; charset=utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update({**FILTERS, "asset": "/assets/{}".format})  # pyright: ignore[reportUnknownMemberType]
    return environment


router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/")
async def judgements(request: Request, engine: TheEngine, viewer: TheViewer) -> Response:
    """A page of judgements that the visitor's key may see."""
    shown, caller = ListFilter.read(request.query_params), viewer.caller
    visible = caller.visible(shown.project or None)
    found, has_more = await engine.store.page(shown.query, visible)
    has_open = not (shown.before or shown.judge or shown.since or shown.until) and shown.status in ("", "unfinished")
    open_groups = await engine.rendezvous.store.waiting(visible, _OPEN_GROUPS) if has_open else []
    judges = [*engine.judges.default.names, *engine.config.judges, *(record.judge for record in found)]
    projects = caller.projects or sorted({record.project for record in found} - {""})
    return page(
        request,
        "list.html.j2",
        viewer=viewer,
        filter=shown,
        records=found,
        open_groups=open_groups,
        older=shown.address(before=found[-1].id) if has_more else None,
        statuses=list(STATUSES),
        judges=list(dict.fromkeys(judges)),
        projects=list(projects),
        counts=engine.counts if caller.projects is None else None,
        judge=", ".join(engine.judges.default.names),
        live_seconds=None if shown.before else _LIST_SECONDS,
        address=str(request.base_url).rstrip("/"),
    )


@router.get("/judgements/{id}")
async def judgement(
    id: Annotated[str, Path(max_length=100)], request: Request, engine: TheEngine, viewer: TheViewer
) -> Response:
    """The group: open, being judged, or finished. What is not to be retained is shown as scores and costs alone."""
    try:
        record = await engine.get(id, viewer.caller)
    except NotFoundError:
        if (open_group := await _open_group(id, request, engine, viewer)) is not None:
            return open_group
        record = await engine.get(id, viewer.caller)  # it may have been closed meanwhile
    verdict = record.verdict if record.retain or record.verdict is None else record.verdict.bare()
    progress = None if verdict else engine.worker.progress(record.id)
    asked = await _request(engine, record)
    by_score = request.query_params.get("sort") == "score"
    if verdict is not None:
        rows = member_rows(verdict.ids, verdict.members, by_score=by_score)
    else:
        ids = asked.ids if asked else list(map(str, range(record.members)))
        votes = progress.votes() if progress and record.retain else {}
        rows = member_rows(ids, [Judgement(votes=votes.get(place, [])) for place in range(len(ids))], by_score=False)
    return page(
        request,
        "group.html.j2",
        viewer=viewer,
        record=record,
        verdict=verdict,
        whole=verdict.group if verdict else None,
        rows=rows,
        by_score=by_score,
        asked=asked,
        progress=progress,
        live_seconds=None if record.is_finished else _GROUP_SECONDS,
    )


async def _open_group(id: str, request: Request, engine: Engine, viewer: Visitor) -> Response | None:
    """An open group; None if the visitor has none."""
    found = await engine.rendezvous.open_group(id, viewer.caller)
    if found is None:
        return None
    group, came = found
    return page(request, "open_group.html.j2", viewer=viewer, group=group, came=came, live_seconds=_GROUP_SECONDS)


async def _request(engine: Engine, record: Record) -> ScoreRequest | None:
    """The request of the group; None if it is erased, or is to be, or is unreadable for this version."""
    payload = await engine.store.payload(record.id) if record.retain else None
    try:
        return None if payload is None else await asyncio.to_thread(ScoreRequest.model_validate_json, payload)
    except ValidationError:
        return None


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
        session = await engine.admission.sign_in(fields.get("key", "").strip(), address_of(request))
    except UnauthorizedError as error:
        return _form(request, following, error)
    answer = RedirectResponse(following, 303)
    # Behind a TLS proxy the request itself looks like plain HTTP; the browser reports its view.
    scheme = urlsplit(request.headers.get("origin", "")).scheme or request.url.scheme
    answer.set_cookie(COOKIE, session, max_age=SESSION_SECONDS, httponly=True, samesite="lax", secure=scheme == "https")
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Ends the browser's session."""
    _from_own_page(request)
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return answer


def _form(request: Request, following: str, problem: UnauthorizedError | None = None) -> Response:
    status = 200 if problem is None else 401
    return page(
        request, "sign_in.html.j2", status=status, next=following, problem=problem, hours=SESSION_SECONDS // 3600
    )


def _from_own_page(request: Request) -> None:
    """Raises `Problem` for a form of another site; the guard has compared the Origin, if there is one."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Problem(403, "origin", "pages of other sites may not sign in or out here.", "Open the service itself.")


async def _fields(request: Request) -> dict[str, str]:
    body = (await read_body(request, _FORM_TYPE, most=_FORM_BYTES)).decode("utf-8", "replace")
    return {name: values[-1] for name, values in parse_qs(body).items()}


def _own_page(path: str) -> str:
    """The path if it is a page's, else `/`."""
    return path if _OWN_PAGE.fullmatch(path) else "/"


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The routes of the API with their parameters and examples, out of /openapi.json."""
    return page(request, "docs.html.j2", described=request.app.openapi())
