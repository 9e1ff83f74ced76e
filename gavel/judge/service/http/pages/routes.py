"""The HTML pages: recent judgements at `/`, one group at `/judgements/{id}`, and the API at `/docs`.

Pages are read-only and load nothing from other hosts. Jinja escapes every text, no template is built from one, and the
content security policy allows only the service's own scripts. The pages work without scripts.

If the service has keys, pages ask for one by HTTP's Basic authentication: it is the password, whatever the user name.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Path
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from gavel.judge.service.engine.admission import Caller
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import ServiceError, UnauthorizedError
from gavel.judge.service.http.pages import FILTERS, HEADERS, member_rows, respond_page
from gavel.judge.service.http.requests import TheEngine, address_of, response, validated
from gavel.judge.service.schemas import STATUSES, PageQuery, Record, ScoreRequest
from gavel.scenarios.judgement import Judgement

_ASK = {"WWW-Authenticate": 'Basic realm="Gavel: the password is an API key", charset="UTF-8"'}
_HERE = FilePath(__file__).parent
assets = StaticFiles(directory=_HERE / "assets")
"""Static files of the pages, at /assets."""
_LIST_SECONDS, _GROUP_SECONDS = 3, 1
"""Seconds between the script's polls of the newest page, and of an unfinished group."""
_OPEN_GROUPS = 20
"""Max open groups that are shown."""


async def _viewer(request: Request, engine: TheEngine) -> Caller:
    authorization = request.headers.get("authorization")
    return await engine.admission.authenticate(authorization, address_of(request), is_page=True)


TheViewer = Annotated[Caller, Depends(_viewer)]
"""Route parameter: the visitor, who needs a key if the service has keys."""


def problem_page(request: Request, error: ServiceError) -> Response:
    """A rejection as a page."""
    headers = response(error).headers
    kept = {name: headers[name] for name in ("retry-after", "allow") if name in headers}
    kept |= _ASK if isinstance(error, UnauthorizedError) else {}
    return page(request, "problem.html.j2", status=error.status, headers=kept, problem=error.problem)


def page(
    request: Request, template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: object
) -> Response:
    """The rendered template."""
    text = _environment().get_template(template).render({"viewer": None, **values})
    return respond_page(request, text, {**HEADERS, **(headers or {})}, status)


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


router = APIRouter(include_in_schema=False)


_FILTERS = ("project", "status", "judge", "since", "until", "before")


@router.get("/")
async def judgements(request: Request, engine: TheEngine, viewer: TheViewer) -> Response:
    """A page of judgements that the visitor's key may see."""
    shown = {name: request.query_params.get(name, "").strip() for name in _FILTERS}
    given = {name: [text] if name == "status" else text for name, text in shown.items() if text}
    visible = viewer.visible(shown["project"] or None)
    found, has_more = await engine.store.page(validated(PageQuery, given), visible)
    has_open = given.keys() <= {"project", "status"} and shown["status"] in ("", "unfinished")
    open_groups = await engine.groups.waiting(visible, _OPEN_GROUPS) if has_open else []
    judges = [*engine.judges.default.names, *engine.config.judges, *(record.judge for record in found)]

    def address(**changes: str) -> str:
        """The list's URL with these filters changed; from its first page, unless `before` is among them."""
        query = {name: text for name, text in (shown | {"before": "", **changes}).items() if text}
        return f"/?{urlencode(query, errors='replace')}" if query else "/"

    return page(
        request,
        "list.html.j2",
        viewer=viewer,
        filter=shown,
        is_filtered=bool(given.keys() - {"before"}),
        list_address=address,
        records=found,
        open_groups=open_groups,
        older=address(before=found[-1].id) if has_more else None,
        statuses=list(STATUSES),
        judges=list(dict.fromkeys(judges)),
        projects=viewer.projects or sorted({record.project for record in found} - {""}),
        counts=engine.counts if viewer.projects is None else None,
        judge=", ".join(engine.judges.default.names),
        live_seconds=None if shown["before"] else _LIST_SECONDS,
        address=str(request.base_url).rstrip("/"),
    )


@router.get("/judgements/{id}")
async def judgement(
    id: Annotated[str, Path(max_length=100)], request: Request, engine: TheEngine, viewer: TheViewer
) -> Response:
    """The group: open, being judged, or finished. What is not to be retained is shown as scores and costs alone."""
    if (found := await engine.open_group(id, viewer)) is not None:
        group, came = found
        return page(request, "open_group.html.j2", viewer=viewer, group=group, came=came, live_seconds=_GROUP_SECONDS)
    record = await engine.get(id, viewer)
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


async def _request(engine: Engine, record: Record) -> ScoreRequest | None:
    """The request of the group; None if it is erased, or is to be, or is unreadable for this version."""
    payload = await engine.store.payload(record.id) if record.retain else None
    try:
        return None if payload is None else await asyncio.to_thread(ScoreRequest.model_validate_json, payload)
    except ValidationError:
        return None


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The routes of the API with their parameters and examples, out of /openapi.json."""
    return page(request, "docs.html.j2", described=request.app.openapi())
