"""`/v1/judgements`: what was judged, and what is being judged."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from starlette.responses import Response

from gavel.judge.service.http.problems import Problem, documented
from gavel.judge.service.http.route_access import TheCaller, TheEngine, known_parameters
from gavel.judge.service.http.routes.score import answer
from gavel.judge.service.schemas.bodies import FinishedStatus, JudgementOut, PageOut, PendingOut, PendingStatus, Seconds
from gavel.judge.service.schemas.records import ID_PATTERN
from gavel.judge.service.schemas.records import Query as JudgementQuery

router = APIRouter(tags=["judgements"], dependencies=[Depends(known_parameters)])
Id = Annotated[str, Path(description="Id of a judgement.", max_length=100)]
_MAX_TIME = 2**40
_TIME = "Unix seconds, or a time such as 2026-11-22T09:00 (UTC where it names no zone)."
_NO_NUL = r"^[^\x00]*$"
"""PostgreSQL has no text with the character 0."""


@router.get(
    "/v1/judgements/{id}",
    summary="One judgement",
    response_model=JudgementOut,
    responses={202: {"description": "Not finished yet.", "model": PendingOut}, **documented(404, 422, 503)},
)
async def get(
    id: Id,
    engine: TheEngine,
    caller: TheCaller,
    wait: Annotated[float, Query(ge=0, le=3600, description="Seconds to wait until it is finished.")] = 0,
) -> Response:
    """The judgement, or 202 while it is not finished. The status `failed` says that the judge could not be asked."""
    record = await engine.get(id, caller)
    if wait and not record.is_finished:
        record = await engine.result(record, min(wait, engine.config.limits.wait_seconds))
    return await answer(engine, record, failure_is_a_problem=False)


@router.delete(
    "/v1/judgements/{id}",
    summary="Delete a judgement",
    status_code=204,
    response_class=Response,
    responses=documented(404, 422, 503),
)
async def delete(id: Id, engine: TheEngine, caller: TheCaller) -> None:
    """Deletes it with its transcripts and replies. A group that is being judged is given up: nothing more is asked, and
    what was asked is charged to its key. A group that waits for members is deleted by the id of the judgement that it
    would get."""
    await engine.delete(id, caller)


@router.get(
    "/v1/judgements",
    summary="Judgements, newest first",
    response_model=PageOut,
    responses=documented(403, 422, 503),
)
async def page(
    engine: TheEngine,
    caller: TheCaller,
    project: Annotated[str | None, Query(max_length=200, pattern=_NO_NUL)] = None,
    status: Annotated[list[PendingStatus | FinishedStatus | Literal["finished", "unfinished"]] | None, Query()] = None,
    judge: Annotated[str | None, Query(max_length=1000, pattern=_NO_NUL, description="As in the list.")] = None,
    since: Annotated[Seconds | None, Query(ge=0, le=_MAX_TIME, description=_TIME)] = None,
    until: Annotated[Seconds | None, Query(ge=0, le=_MAX_TIME, description=f"{_TIME} Exclusive.")] = None,
    before: Annotated[str | None, Query(pattern=ID_PATTERN, description="`next` of another page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """A page of judgements without their members."""
    if project is not None and not caller.may_use(project):
        raise Problem(403, "forbidden", f"this key is not for the project {project!r}.", "Use a key that is.")
    own = None if caller.projects is None else frozenset(caller.projects)
    projects = own if project is None else frozenset({project})
    query = JudgementQuery(projects, _statuses(status or ()), judge, since, until, before, limit + 1)
    records = await engine.page(query)
    more = len(records) > limit
    shown = [record.summary for record in records[:limit]]
    found = PageOut(judgements=shown, next=shown[-1].id if more else None)
    return Response(found.model_dump_json(), media_type="application/json")


_UNFINISHED = ("queued", "running")
_FINISHED = ("scored", "partial", "unscored", "degenerate", "failed")


def _statuses(names: Sequence[str]) -> frozenset[str]:
    groups = {"finished": _FINISHED, "unfinished": _UNFINISHED}
    return frozenset(status for name in names for status in groups.get(name, (name,)))
