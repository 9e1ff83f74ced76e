"""The routes under /v1: judge whole groups and groups whose members arrive separately, and report judgements."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
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
    parse,
    read_body,
    read_json,
    read_lines,
    wait_for,
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
    Project,
    Record,
    ScoreRequest,
    SummaryOut,
    scored_fields,
)

router = APIRouter(tags=["judging"])
Id = Annotated[str, Path(description="Id of a judgement.", max_length=100)]
Seconds = Annotated[float, Query(ge=0, le=3600, description="Seconds to wait until it is judged.")]
_QUESTION = {"role": "user", "content": "I want my money back for order 7890."}
_CAREFUL = [_QUESTION, {"role": "assistant", "content": "I looked it up: it came 9 days ago, so I have refunded it."}]
_HASTY = [_QUESTION, {"role": "assistant", "content": "Refunded!"}]
_EXAMPLE = {
    "rubric": "Looks the order up before it refunds.",
    "trajectories": [{"id": "careful", "messages": _CAREFUL}, {"id": "hasty", "messages": _HASTY}],
}
_MEMBER_EXAMPLE = {"expected": 8, "id": "sample-3", "messages": _CAREFUL}


@router.post(
    "/v1/score",
    summary="Judge one group",
    response_model=JudgementOut,
    responses={202: {"description": "Accepted, and not judged yet: ask at Location.", "model": PendingOut}},
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
    record = await wait_for(request, record, None if wait else 0)
    record.raise_failure()
    return _answer(record)


def _answer(record: Record) -> Response:
    """The record as a response: 200 if it is finished, else 202."""
    place = {"Location": f"/v1/judgements/{record.id}"}
    return _json(record.answer, place) if record.is_finished else _json(record.answer, place, 202)


def _json(model: BaseModel, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    sent = {**(headers or {}), **({"Retry-After": "1"} if status == 202 else {})}
    return Response(model.model_dump_json(), status, sent, "application/json")


@router.post(
    "/v1/score/batch",
    summary="Judge many groups",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One line for each group, as they are judged: its `index` in the request, from 0, with the "
            "judgement, or with a problem.",
            "content": {NDJSON[0]: {"schema": {"type": "string"}}},
        }
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
    records: dict[str, tuple[Record, list[int]]] = {}
    refused: list[bytes] = []
    number = 0
    try:
        async for line in read_lines(request):
            key = None if idempotency_key is None else f"{idempotency_key}:{number}"
            try:
                if isinstance(line, Problem):
                    raise line
                record = await engine.submit(await parse(ScoreRequest, line), caller, key)
                records.setdefault(record.id, (record, []))[1].append(number)
            except ServiceError as error:
                refused.append(_line(number, error.problem))
            number += 1
    except Problem as error:  # of the body
        if not records:
            raise
        refused.append(_line(number, error.problem))
    answers = _stream_answers(engine, list(records.values()), refused)
    return StreamingResponse(answers, media_type=NDJSON[0], headers=UNBUFFERED)


async def _stream_answers(
    engine: Engine, records: list[tuple[Record, list[int]]], refused: list[bytes]
) -> AsyncIterator[bytes]:
    async def lines(record: Record, numbers: list[int]) -> bytes:
        try:
            body = (await engine.result(record)).answer.model_dump()
        except ServiceError as error:
            body = error.problem
        return b"".join(_line(number, body) for number in numbers)

    for each in refused:
        yield each
    waiting = [asyncio.ensure_future(lines(*each)) for each in records]
    try:
        for done in asyncio.as_completed(waiting):
            yield await done
    finally:
        for task in waiting:
            task.cancel()


def _line(number: int, body: dict[str, Any]) -> bytes:
    return json.dumps({"index": number, **body}, separators=(",", ":")).encode() + b"\n"


@router.get(
    "/v1/judgements/{id}",
    summary="One judgement",
    response_model=JudgementOut,
    responses={202: {"description": "Not finished yet.", "model": PendingOut}},
)
async def get(id: Id, request: Request, engine: TheEngine, caller: TheCaller, wait: Seconds = 0) -> Response:
    """The judgement, or 202 while it is not finished. The status `failed` says that the judge could not be asked."""
    seconds = min(wait, engine.config.limits.wait_seconds)
    return _answer(await wait_for(request, await engine.get(id, caller), seconds))


@router.delete("/v1/judgements/{id}", summary="Delete a judgement", status_code=204, response_class=Response)
async def delete(id: Id, engine: TheEngine, caller: TheCaller) -> None:
    """Deletes it with its transcripts and replies. A group that is being judged is given up: nothing more is asked, and
    what was asked is charged to its key. A group that waits for members is deleted by the id of the judgement that it
    would get."""
    await engine.delete(id, caller)


@router.get("/v1/judgements", summary="Judgements, newest first", response_model=PageOut)
async def page(engine: TheEngine, caller: TheCaller, asked: Annotated[PageQuery, Query()]) -> Response:
    """A page of judgements without their members."""
    records, has_more = await engine.store.page(asked, caller.visible(asked.project))
    shown = [SummaryOut.model_validate(record, from_attributes=True) for record in records]
    return _json(PageOut(judgements=shown, next=shown[-1].id if has_more else None))


Group = Annotated[
    str, Path(max_length=200, pattern=NAME_PATTERN, description="Name of the group, such as step and task.")
]
Member = Annotated[str, Path(max_length=200, pattern=NAME_PATTERN, description="Name of the member in its group.")]
_MEMBER_PENDING: dict[int | str, dict[str, Any]] = {
    202: {"description": "Accepted, and not judged yet: ask at Location.", "model": MemberPending}
}


@router.post(
    "/v1/groups/{group}/members",
    summary="Send one member of a group",
    response_model=MemberAnswer,
    responses=_MEMBER_PENDING,
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
    joined = await engine.join_group(group, member, caller)
    del member  # frees memory while it waits: its messages are in the database
    return _answer_member(joined, name, await wait_for(request, joined.record, None if waits else 0))


@router.get(
    "/v1/groups/{group}/members/{id}",
    summary="The score of one member",
    response_model=MemberAnswer,
    responses=_MEMBER_PENDING,
)
async def get_member(
    group: Group,
    id: Member,
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    project: Annotated[Project, Query()] = "",
    wait: Seconds = 0,
) -> Response:
    """The member's score, or 202 while its group is not judged."""
    found = await engine.find_group(group, id, project, caller)
    seconds = min(wait, engine.config.limits.wait_seconds)
    return _answer_member(found, id, await wait_for(request, found.record, seconds))


def _answer_member(group: GroupRecord, member: str, record: Record) -> Response:
    """The member's score if its group is judged, else 202. Raises `Problem` for a judgement that failed."""
    same: dict[str, Any] = {"group": group.name, "id": member, "judgement": record.id, "expected": group.expected}
    same |= {"status": record.status}
    if not record.is_finished:
        pending = MemberPending(**same, arrived=group.arrived, deadline_at=group.deadline_at)
        place = f"/v1/groups/{quote(group.name, safe='')}/members/{quote(member, safe='')}"
        query = f"?project={quote(record.project, safe='')}" if record.project else ""
        return _json(pending, {"Location": place + query}, 202)
    return _json(MemberAnswer(**same, arrived=record.members, **scored_fields(record.judgements()[member])))
