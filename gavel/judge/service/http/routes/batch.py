"""`POST /v1/score/batch`: judges many groups, one a line."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gavel.judge.service.engine.engine import Engine, gone
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.disconnect import UNBUFFERED
from gavel.judge.service.http.ndjson_lines import MEDIA_TYPES, lines_of
from gavel.judge.service.http.problems import Problem, documented, problem_of
from gavel.judge.service.http.request_body import body_of, parsed
from gavel.judge.service.http.route_access import IdempotencyKey, TheCaller, TheEngine, known_parameters
from gavel.judge.service.schemas.bodies import ScoreRequest
from gavel.judge.service.schemas.records import Record

router = APIRouter(tags=["judging"], dependencies=[Depends(known_parameters)])
_OUT = MEDIA_TYPES[0]


@router.post(
    "/v1/score/batch",
    summary="Judge many groups",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One line for each group, as they are judged: its `index` in the request, from 0, with the "
            "judgement, or with a problem.",
            "content": {_OUT: {"schema": {"type": "string"}}},
        },
        **documented(400, 408, 413, 415, 422, 503),
    },
    openapi_extra=body_of(ScoreRequest, media_type=_OUT),
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
    async for line in lines_of(request):
        key = None if idempotency_key is None else f"{idempotency_key}:{number}"
        try:
            if isinstance(line, Problem):
                of_body = line
                raise line
            record = (await engine.submit(parsed(ScoreRequest, line), caller, key)).record
        except Problem as problem:
            refused.append(_line(number, problem.body))
        except ServiceError as error:
            refused.append(_line(number, problem_of(error).body))
        else:
            accepted.setdefault(record.id, []).append(number)
            records[record.id] = record
        number += 1
    if of_body is not None and not accepted:
        raise of_body
    return StreamingResponse(_answers(engine, records, accepted, refused), media_type=_OUT, headers=UNBUFFERED)


async def _answers(
    engine: Engine, records: dict[str, Record], numbers: dict[str, list[int]], refused: list[bytes]
) -> AsyncIterator[bytes]:
    for line in refused:
        yield line
    async for judgement, record in engine.results(records.values()):
        body = problem_of(gone(judgement)).body if record is None else record.answer.model_dump()
        if record is not None:
            await engine.answered(record)  # before: who has read the last line may close the connection
        for number in numbers[judgement]:
            yield _line(number, body)


def _line(number: int, body: dict[str, Any]) -> bytes:
    return json.dumps({"index": number, **body}, separators=(",", ":")).encode() + b"\n"
