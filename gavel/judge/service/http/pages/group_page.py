"""`/judgements/{id}`: one group, as a table of its members."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from gavel.judge.service.engine.caller import Visitor
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import NotFoundError
from gavel.judge.service.http.pages.html import page
from gavel.judge.service.http.pages.member_rows import member_rows
from gavel.judge.service.http.pages.page_route import PageRoute
from gavel.judge.service.http.pages.stored_request import StoredRequest
from gavel.judge.service.http.pages.viewer import TheViewer
from gavel.judge.service.http.route_access import TheEngine
from gavel.judge.service.schemas.records import Record
from gavel.scenarios.judgement import Judgement

router = APIRouter(include_in_schema=False, route_class=PageRoute)
_LIVE_SECONDS = 1
"""Between looks of the script at a group that is not finished."""


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
        record = await engine.get(id, viewer.caller)  # it may have been closed just now
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
        live_seconds=None if record.is_finished else _LIVE_SECONDS,
    )


async def _open_group(id: str, request: Request, engine: Engine, viewer: Visitor) -> Response | None:
    """A group that waits for members; None where there is none for the visitor."""
    found = await engine.rendezvous.open_group(id, viewer.caller)
    if found is None:
        return None
    group, came = found
    return page(request, "open_group.html.j2", viewer=viewer, group=group, came=came, live_seconds=_LIVE_SECONDS)


async def _request(engine: Engine, record: Record) -> StoredRequest | None:
    """The request of the group; None where it is erased, or is to be."""
    payload = await engine.store.payload(record.id) if record.retain else None
    return None if payload is None else await asyncio.to_thread(StoredRequest.read, payload)
