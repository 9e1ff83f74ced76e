"""`POST /{env}/score_group`: the Open Reward Standard's group scoring, as openreward's client asks for it.

The client (`session.score_group`) reads server-sent events: `task_id`, then `end` with the scores, or `error`. Who does
not accept those gets the scores as JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.disconnect import UNBUFFERED
from gavel.judge.service.http.problems import Problem, documented, problem_of
from gavel.judge.service.http.request_body import Body, body_of, built, parsed
from gavel.judge.service.http.route_access import TheCaller, TheEngine
from gavel.judge.service.http.wire_answers import rewards_of
from gavel.judge.service.schemas.bodies import ScoreRequest, TrajectoryIn
from gavel.judge.service.schemas.records import Record

router = APIRouter(tags=["wires"])
OWN = "judge"
"""The environment whose rubric is that of the service's judge; others are presets."""
_PING_SECONDS = 10.0
_EVENTS = "text/event-stream"


class OrsMessage(BaseModel):
    """One turn: blocks of text, images, reasoning, tool calls and tool results."""

    role: Literal["system", "user", "assistant"]
    blocks: list[dict[str, JsonValue]]


class OrsCandidate(BaseModel):
    """One rollout."""

    messages: list[OrsMessage] = Field(min_length=1)
    metadata: dict[str, JsonValue] | None = None


class OrsScoreGroup(BaseModel):
    """A group of rollouts of one task."""

    candidates: list[OrsCandidate] = Field(min_length=1)
    task_id: str | None = Field(default=None, max_length=100, pattern=r"^[\w-]+$")
    """Of a stream that broke: goes on with it."""


class OrsScore(BaseModel):
    """The score of one candidate."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    reward: float
    """From 0 to 1."""
    metadata: dict[str, Any] | None = None
    """The candidate's own, with Gavel's explanation and standard error under `gavel`."""


class OrsScores(BaseModel):
    """The scores of a group, in its order."""

    scores: list[OrsScore]


@router.post(
    "/{env}/score_group",
    summary="ORS: score a group",
    response_model=OrsScores,
    responses={
        200: {"description": "The scores, as JSON or as server-sent events.", "content": {_EVENTS: {}}},
        **documented(400, 404, 408, 413, 415, 422, 502, 503),
    },
    openapi_extra=body_of(OrsScoreGroup),
)
async def score_group(
    env: Annotated[str, Path(max_length=200, description=f"A rubric preset's name, or {OWN!r}.", examples=[OWN])],
    body: Body,
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    accept: Annotated[str, Header()] = "",
) -> Response:
    """Scores candidates relative to each other. A group with a candidate that is not scored is refused as a whole."""
    asked = parsed(OrsScoreGroup, body)
    if env != OWN and env not in engine.config.rubrics:
        names = ", ".join([OWN, *engine.config.rubrics])
        raise Problem(404, "no-such-environment", f"there is no environment {env!r}.", f"There are: {names}.")
    if asked.task_id is not None:
        record = await engine.get(asked.task_id, caller)
    else:
        trajectories = [built(TrajectoryIn, messages=_messages(each)) for each in asked.candidates]
        score = built(ScoreRequest, trajectories=trajectories, preset=None if env == OWN else env)
        record = (await engine.submit(score, caller)).record
    kept = [candidate.metadata for candidate in asked.candidates]
    if _EVENTS in accept:
        return StreamingResponse(_events(engine, record, kept), media_type=_EVENTS, headers=UNBUFFERED)
    finished = await engine.result(record)
    answer = Response(_scores(finished, kept), media_type="application/json")
    await engine.answered(finished)
    return answer


def _scores(record: Record, kept: list[dict[str, JsonValue] | None]) -> str:
    rewards = rewards_of(record)
    if len(rewards) != len(kept):
        raise Problem(422, "invalid-request", "the task_id is that of another group.", "Leave task_id out.")
    members = record.verdict.members if record.verdict else []
    scores = [
        OrsScore(
            reward=reward,
            metadata={
                **(own or {}),
                "gavel": {"explanation": member.explanation, "standard_error": member.standard_error},
            },
        )
        for reward, own, member in zip(rewards, kept, members, strict=True)
    ]
    return OrsScores(scores=scores).model_dump_json()


async def _events(engine: Engine, record: Record, kept: list[dict[str, JsonValue] | None]) -> AsyncIterator[bytes]:
    yield _event("task_id", record.id)
    waiting = asyncio.ensure_future(engine.result(record))
    try:
        while not (await asyncio.wait([waiting], timeout=_PING_SECONDS))[0]:
            yield b": ping\r\n\r\n"
        finished = waiting.result()
        yield _event("end", _scores(finished, kept))
        await engine.answered(finished)
    except Problem as problem:
        yield _event("error", problem.detail)
    except ServiceError as error:
        yield _event("error", problem_of(error).detail)
    finally:
        waiting.cancel()


def _event(name: str, data: str) -> bytes:
    lines = "".join(f"data: {line}\r\n" for line in data.splitlines() or [""])
    return f"event: {name}\r\n{lines}\r\n".encode()


def _messages(candidate: OrsCandidate) -> list[dict[str, JsonValue]]:
    """The candidate as OpenAI chat messages."""
    found: list[dict[str, JsonValue]] = []
    for message in candidate.messages:
        content: list[JsonValue] = []
        calls: list[JsonValue] = []
        results: list[dict[str, JsonValue]] = []
        for block in message.blocks:
            match block.get("type"):
                case "tool_call":
                    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input"))}
                    calls.append({"id": block.get("id"), "type": "function", "function": function})
                case "tool_result":
                    shown = _content([_part(part) for part in _list(block.get("blocks"))])
                    results.append({"role": "tool", "tool_call_id": block.get("tool_call_id"), "content": shown})
                case "reasoning":
                    continue  # judges are not shown what an agent thought
                case _:
                    content.append(_part(block))
        found += results
        if content or calls or not results:
            turn: dict[str, JsonValue] = {"role": message.role, "content": _content(content)}
            if calls:
                turn["tool_calls"] = calls
            found.append(turn)
    return found


def _part(block: JsonValue) -> JsonValue:
    if isinstance(block, dict) and block.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{block.get('mimeType')};base64,{block.get('data')}"}}
    if isinstance(block, dict) and block.get("type") == "text":
        return {"type": "text", "text": block.get("text")}
    return block


def _content(parts: list[JsonValue]) -> JsonValue:
    """One text as a string, else the parts."""
    match parts:
        case []:
            return ""
        case [{"type": "text", "text": str(text)}]:
            return text
        case _:
            return parts


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
