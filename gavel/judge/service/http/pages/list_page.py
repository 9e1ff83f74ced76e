"""`/`: recent judgements, newest first, with filters."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gavel.judge.service.http.pages.html import page
from gavel.judge.service.http.pages.list_filter import PAGE_SIZE, STATUSES, ListFilter
from gavel.judge.service.http.pages.page_route import PageRoute
from gavel.judge.service.http.pages.viewer import TheViewer
from gavel.judge.service.http.route_access import TheEngine

router = APIRouter(include_in_schema=False, route_class=PageRoute)
_LIVE_SECONDS = 3
"""Between looks of the script at the newest page."""
_OPEN_GROUPS = 20
"""Groups that wait for members, of those that are shown."""


@router.get("/")
async def judgements(request: Request, engine: TheEngine, viewer: TheViewer) -> Response:
    """A page of judgements that the visitor's key may see."""
    shown = ListFilter.read(request.query_params)
    caller = viewer.caller
    query = shown.query(caller)
    records = await engine.page(query, caller)
    found = records[:PAGE_SIZE]
    has_open = not (shown.before or shown.judge or shown.since or shown.until) and shown.status in ("", "unfinished")
    open_groups = await engine.rendezvous.waiting(query.projects, _OPEN_GROUPS) if has_open else []
    judges = [*engine.judges.default.names, *engine.config.judges, *(record.judge for record in found)]
    projects = caller.projects or sorted({record.project for record in found} - {""})
    return page(
        request,
        "list.html.j2",
        viewer=viewer,
        filter=shown,
        records=found,
        open_groups=open_groups,
        older=shown.address(before=found[-1].id) if len(records) > PAGE_SIZE else None,
        statuses=list(STATUSES),
        judges=list(dict.fromkeys(judges)),
        projects=list(projects),
        counts=engine.counts if caller.projects is None else None,
        judge=", ".join(engine.judges.default.names),
        live_seconds=None if shown.before else _LIVE_SECONDS,
        address=str(request.base_url).rstrip("/"),
    )
