"""`POST /v1/score`: judges one group."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.problems import Problem, documented
from gavel.judge.service.http.request_body import Body, body_of, parsed
from gavel.judge.service.http.route_access import IdempotencyKey, TheCaller, TheEngine, known_parameters
from gavel.judge.service.schemas.bodies import JudgementOut, PendingOut, ScoreRequest
from gavel.judge.service.schemas.records import Record

router = APIRouter(tags=["judging"], dependencies=[Depends(known_parameters)])
_RETRY_AFTER = "1"
EXAMPLE = {
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
    summary="Judge one group",
    response_model=JudgementOut,
    responses={
        202: {"description": "Accepted, and not judged yet: ask at Location.", "model": PendingOut},
        **documented(400, 404, 408, 413, 415, 422, 429, 502, 503),
    },
    openapi_extra=body_of(ScoreRequest, EXAMPLE),
)
async def score(
    body: Body,
    engine: TheEngine,
    caller: TheCaller,
    idempotency_key: IdempotencyKey = None,
    wait: Annotated[bool, Query(description="false: answer 202 with the id at once.")] = True,
) -> Response:
    """Scores the members of a group relative to each other.

    The group is stored before anything else, and judged even when the connection is closed. With `wait=false`, or when
    judging takes too long, the answer is 202 with the place of the judgement in `Location`.
    """
    request = parsed(ScoreRequest, body)
    record = await engine.score(request, caller, idempotency_key, None if wait else 0)
    return await answer(engine, record, failure_is_a_problem=True)


async def answer(engine: Engine, record: Record, *, failure_is_a_problem: bool) -> Response:
    """The record as a response: 200 when it is finished, else 202. Raises `Problem` for a failed one, if asked to."""
    if not record.is_finished:
        headers = {"Location": f"/v1/judgements/{record.id}", "Retry-After": _RETRY_AFTER}
        return _json(record.answer, 202, headers)
    verdict = record.verdict
    if failure_is_a_problem and verdict is not None and verdict.group is None:
        more = {"judgement": record.id}
        raise Problem(502, "judge-failed", verdict.problem or "", verdict.remedy, {}, more)
    response = _json(record.answer, 200, {"Location": f"/v1/judgements/{record.id}"})
    await engine.answered(record)
    return response


def _json(model: JudgementOut | PendingOut, status: int, headers: dict[str, str]) -> Response:
    return Response(model.model_dump_json(), status, headers, "application/json")
