"""`/v1/groups/{group}/members`: groups whose members arrive one by one."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.problems import Problem, documented
from gavel.judge.service.http.requests import (
    TheCaller,
    TheEngine,
    describe_body,
    known_parameters,
    read_json,
    while_connected,
)
from gavel.judge.service.schemas.bodies import NAME_PATTERN, MemberAnswer, MemberPending, MemberRequest
from gavel.judge.service.schemas.records import GroupRecord

router = APIRouter(tags=["groups"], dependencies=[Depends(known_parameters)])
Group = Annotated[
    str, Path(max_length=200, pattern=NAME_PATTERN, description="Name of the group, such as step and task.")
]
Member = Annotated[str, Path(max_length=200, pattern=NAME_PATTERN, description="Name of the member in its group.")]
_RETRY_AFTER = "1"
_PENDING = {"description": "Accepted, and not judged yet: ask at Location.", "model": MemberPending}
_EXAMPLE = {
    "expected": 8,
    "id": "sample-3",
    "messages": [
        {"role": "user", "content": "I want my money back for order 7890."},
        {"role": "assistant", "content": "I looked it up: it came 9 days ago, so I have refunded it."},
    ],
}


@router.post(
    "/v1/groups/{group}/members",
    summary="Send one member of a group",
    response_model=MemberAnswer,
    responses={202: _PENDING, **documented(400, 404, 408, 409, 413, 415, 422, 429, 502, 503)},
    openapi_extra=describe_body(MemberRequest, _EXAMPLE),
)
async def join(
    group: Group,
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    wait: Annotated[bool | None, Query(description="false: answer 202 at once. Default: the body's wait.")] = None,
) -> Response:
    """Answers each member with its own score, once all have arrived, or at the group's deadline.

    A member is stored before anything else, and its group is judged even when connections are closed: send the same
    body again, or ask at Location. Members may reach different processes of the service.
    """
    member = await read_json(request, MemberRequest)
    name, waits = member.id, member.wait if wait is None else wait
    joined = await engine.rendezvous.join(group, member, caller)
    del member  # while it waits, its messages are in the database alone
    seconds = engine.config.limits.wait_seconds if waits else 0.0
    return await while_connected(request, _answer(engine, joined, name, seconds))


@router.get(
    "/v1/groups/{group}/members/{id}",
    summary="The score of one member",
    response_model=MemberAnswer,
    responses={202: _PENDING, **documented(404, 422, 502, 503)},
)
async def get(
    group: Group,
    id: Member,
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    project: Annotated[str, Query(max_length=200, pattern=r"^[\w.-]*$")] = "",
    wait: Annotated[float, Query(ge=0, le=3600, description="Seconds to wait until it is judged.")] = 0,
) -> Response:
    """The member's score, or 202 while its group is not judged."""
    found = await engine.rendezvous.find(group, id, project, caller)
    seconds = min(wait, engine.config.limits.wait_seconds)
    return await while_connected(request, _answer(engine, found, id, seconds))


async def _answer(engine: Engine, group: GroupRecord, member: str, seconds: float) -> Response:
    """The member's score once its group is judged, 202 if that takes longer. Raises `Problem` for a judgement that
    failed."""
    record = await engine.rendezvous.result(group, seconds)
    if record is None or record.verdict is None:
        status = "open" if record is None else "running" if record.status == "running" else "queued"
        pending = MemberPending(
            group=group.name,
            id=member,
            judgement=group.id,
            status=status,
            expected=group.expected,
            arrived=group.arrived,
            deadline_at=group.deadline_at,
        )
        place = f"/v1/groups/{quote(group.name, safe='')}/members/{quote(member, safe='')}"
        query = f"?project={quote(group.project, safe='')}" if group.project else ""
        headers = {"Location": place + query, "Retry-After": _RETRY_AFTER}
        return Response(pending.model_dump_json(), 202, headers, "application/json")
    verdict = record.verdict
    if verdict.group is None:
        raise Problem(502, "judge-failed", verdict.problem or "", verdict.remedy, {}, {"judgement": record.id})
    scored = verdict.members[verdict.ids.index(member)]
    answer = MemberAnswer(
        group=group.name,
        id=member,
        judgement=record.id,
        status=verdict.status,
        score=scored.score,
        standard_error=scored.standard_error,
        explanation=scored.explanation,
        flags=scored.flags,
        reason=scored.reason,
        expected=group.expected,
        arrived=record.members,
    )
    response = Response(answer.model_dump_json(), 200, media_type="application/json")
    await engine.answered(record)
    return response
