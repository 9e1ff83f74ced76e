"""The routes under /v1: judge whole groups and groups whose members arrive separately, and report judgements."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import Problem, ServiceError
from gavel.judge.service.http.requests import (
    NDJSON,
    UNBUFFERED,
    IdempotencyKey,
    TheCaller,
    TheEngine,
    describe_body,
    documented,
    parse,
    raise_failure,
    read_body,
    read_json,
    read_lines,
    while_connected,
)
from gavel.judge.service.schemas import (
    NAME_PATTERN,
    GroupRecord,
    JudgementOut,
    MemberAnswer,
    MemberPending,
    MemberRequest,
    PageOut,
    PageQuery,
    PendingOut,
    Record,
    ScoreRequest,
    SummaryOut,
    scored_fields,
)

router = APIRouter()
Id = Annotated[str, Path(description="Id of a judgement.", max_length=100)]
_EXAMPLE = {
    "rubric": "Looks the order up before it refunds.",
    "trajectories": [
        {
            "id": "careful",
            "messages": [
                {"role": "user", "content": "I want my money back for order 7890."},
                {"role": "assistant", "content": "I looked it up: it came 9 days ago, so I have refunded it."},
            ],
        },
        {
            "id": "hasty",
            "messages": [
                {"role": "user", "content": "I want my money back for order 7890."},
                {"role": "assistant", "content": "Refunded!"},
            ],
        },
    ],
}


@router.post(
    "/v1/score",
    tags=["judging"],
    summary="Judge one group",
    response_model=JudgementOut,
    responses={
        202: {"description": "Accepted, and not judged yet: ask at Location.", "model": PendingOut},
        **documented(400, 404, 408, 413, 415, 422, 429, 502, 503),
    },
    openapi_extra=describe_body(ScoreRequest, _EXAMPLE),
)
async def score(
    request: Request,
    caller: TheCaller,
    idempotency_key: IdempotencyKey = None,
    wait: Annotated[bool, Query(description="false: answer 202 with the id at once.")] = True,
) -> Response:
    """Scores the members of a group relative to each other.

    The group is stored before anything else, and judged even when the connection is closed. With `wait=false`, or when
    judging takes too long, the answer is 202 with the place of the judgement in `Location`.
    """
    engine: Engine = request.app.state.engine
    group = await parse(ScoreRequest, await read_body(request))
    record = await engine.submit(group, caller, idempotency_key)
    record = await while_connected(request, engine.result(record, None if wait else 0))
    return await _answer(engine, record, failure_is_a_problem=True)


async def _answer(engine: Engine, record: Record, *, failure_is_a_problem: bool) -> Response:
    """The record as a response: 200 if it is finished, else 202. Raises `Problem` for a failed one, if requested."""
    place = f"/v1/judgements/{record.id}"
    if not record.is_finished:
        return _json(record.answer, 202, {"Location": place, "Retry-After": "1"})
    if failure_is_a_problem:
        raise_failure(record)
    response = _json(record.answer, 200, {"Location": place})
    await engine.answered(record)
    return response


def _json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(model.model_dump_json(), status, headers, "application/json")


@router.post(
    "/v1/score/batch",
    tags=["judging"],
    summary="Judge many groups",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One line for each group, as they are judged: its `index` in the request, from 0, with the "
            "judgement, or with a problem.",
            "content": {NDJSON[0]: {"schema": {"type": "string"}}},
        },
        **documented(400, 408, 413, 415, 422, 503),
    },
    openapi_extra=describe_body(ScoreRequest, media_type=NDJSON[0]),
)
async def batch(
    request: Request, engine: TheEngine, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Takes NDJSON: a body of `POST /v1/score` in each line. All are stored first, then answered as they are judged.

    A line that is refused costs itself alone, and blank lines are not counted. An Idempotency-Key stands for the whole
    batch.
    """
    accepted: dict[str, list[int]] = {}
    records: dict[str, Record] = {}
    refused: list[bytes] = []
    of_body: Problem | None = None
    number = 0
    async for line in read_lines(request):
        key = None if idempotency_key is None else f"{idempotency_key}:{number}"
        try:
            if isinstance(line, Problem):
                of_body = line
                raise line
            record = await engine.submit(await parse(ScoreRequest, line), caller, key)
        except ServiceError as error:
            refused.append(_line(number, error.problem))
        else:
            accepted.setdefault(record.id, []).append(number)
            records[record.id] = record
        number += 1
    if of_body is not None and not accepted:
        raise of_body
    return StreamingResponse(
        _stream_answers(engine, records, accepted, refused), media_type=NDJSON[0], headers=UNBUFFERED
    )


async def _stream_answers(
    engine: Engine, records: dict[str, Record], numbers: dict[str, list[int]], refused: list[bytes]
) -> AsyncIterator[bytes]:
    async def line(record: Record) -> list[bytes]:
        try:
            finished = await engine.result(record)
            body = finished.answer.model_dump()
            await engine.answered(finished)  # before: who has read the last line may close the connection
        except ServiceError as error:
            body = error.problem
        return [_line(number, body) for number in numbers[record.id]]

    for each in refused:
        yield each
    waiting = [asyncio.ensure_future(line(record)) for record in records.values()]
    try:
        for done in asyncio.as_completed(waiting):
            for each in await done:
                yield each
    finally:
        for task in waiting:
            task.cancel()


def _line(number: int, body: dict[str, Any]) -> bytes:
    return json.dumps({"index": number, **body}, separators=(",", ":")).encode() + b"\n"


@router.get(
    "/v1/judgements/{id}",
    tags=["judgements"],
    summary="One judgement",
    response_model=JudgementOut,
    responses={202: {"description": "Not finished yet.", "model": PendingOut}, **documented(404, 422, 503)},
)
async def get(
    id: Id,
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    wait: Annotated[float, Query(ge=0, le=3600, description="Seconds to wait until it is finished.")] = 0,
) -> Response:
    """The judgement, or 202 while it is not finished. The status `failed` says that the judge could not be asked."""
    record = await engine.get(id, caller)
    if wait and not record.is_finished:
        seconds = min(wait, engine.config.limits.wait_seconds)
        record = await while_connected(request, engine.result(record, seconds))
    return await _answer(engine, record, failure_is_a_problem=False)


@router.delete(
    "/v1/judgements/{id}",
    tags=["judgements"],
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
    tags=["judgements"],
    summary="Judgements, newest first",
    response_model=PageOut,
    responses=documented(403, 422, 503),
)
async def page(engine: TheEngine, caller: TheCaller, asked: Annotated[PageQuery, Query()]) -> Response:
    """A page of judgements without their members."""
    records, has_more = await engine.store.page(asked, caller.visible(asked.project))
    shown = [SummaryOut.model_validate(record) for record in records]
    return _json(PageOut(judgements=shown, next=shown[-1].id if has_more else None))


Group = Annotated[
    str, Path(max_length=200, pattern=NAME_PATTERN, description="Name of the group, such as step and task.")
]
Member = Annotated[str, Path(max_length=200, pattern=NAME_PATTERN, description="Name of the member in its group.")]
_MEMBER_PENDING = {"description": "Accepted, and not judged yet: ask at Location.", "model": MemberPending}
_MEMBER_EXAMPLE = {
    "expected": 8,
    "id": "sample-3",
    "messages": [
        {"role": "user", "content": "I want my money back for order 7890."},
        {"role": "assistant", "content": "I looked it up: it came 9 days ago, so I have refunded it."},
    ],
}


@router.post(
    "/v1/groups/{group}/members",
    tags=["groups"],
    summary="Send one member of a group",
    response_model=MemberAnswer,
    responses={202: _MEMBER_PENDING, **documented(400, 404, 408, 409, 413, 415, 422, 429, 502, 503)},
    openapi_extra=describe_body(MemberRequest, _MEMBER_EXAMPLE),
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
    del member  # frees memory while it waits: its messages are in the database
    seconds = engine.config.limits.wait_seconds if waits else 0.0
    return await while_connected(request, _answer_member(engine, joined, name, seconds))


@router.get(
    "/v1/groups/{group}/members/{id}",
    tags=["groups"],
    summary="The score of one member",
    response_model=MemberAnswer,
    responses={202: _MEMBER_PENDING, **documented(404, 422, 502, 503)},
)
async def get_member(
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
    return await while_connected(request, _answer_member(engine, found, id, seconds))


async def _answer_member(engine: Engine, group: GroupRecord, member: str, seconds: float) -> Response:
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
        return _json(pending, 202, {"Location": place + query, "Retry-After": "1"})
    raise_failure(record)
    verdict = record.verdict
    answer = MemberAnswer(
        id=member,
        group=group.name,
        judgement=record.id,
        status=verdict.status,
        expected=group.expected,
        arrived=record.members,
        **scored_fields(verdict.members[verdict.ids.index(member)]),
    )
    response = _json(answer)
    await engine.answered(record)
    return response
