"""Other systems' wire formats, translated into groups and judged in the same way. They answer with numbers: an unscored
member is an error, never a number.

    POST /{env}/score_group   Open Reward Standard, as openreward's client asks for it: a group, answered as
                              server-sent events (`task_id`, then `end` with the scores, or `error`) or as JSON
    POST /compare, /verify    NeMo Gym (`genrm_compare`): a group; one rollout, answered once its group is complete
    POST /slime/{group}       slime's `remote_rm`: a group as a list; one sample, answered once its group is complete

slime is run with `--rm-url http://127.0.0.1:8080/slime/run-7?size=8`. Its samples have no id: those with one prompt and
label are a group, and two equal texts are distinguished by the callers that wait for them. A sample that is resent
after a lost connection gets its earlier position.
"""

import asyncio
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import InvalidRequestError, Problem, ServiceError
from gavel.judge.service.http.requests import (
    UNBUFFERED,
    TheCaller,
    TheEngine,
    describe_body,
    parse,
    read_body,
    read_json,
    validated,
    wait_for,
)
from gavel.judge.service.schemas import NAME_PATTERN, ChatMessage, Integer, MemberRequest, Record, ScoreRequest
from gavel.scenarios.judgement import Judgement

router = APIRouter(tags=["wires"], default_response_class=JSONResponse)
_OWN = "judge"
"""The ORS environment that uses the service judge's rubric; others are presets."""
_PING_SECONDS = 10.0
_EVENTS = "text/event-stream"
_Chat = list[dict[str, JsonValue]]


def _rewards(record: Record) -> list[float]:
    """The scores of all members, in the request's order. Raises `Problem` if one has none."""
    return [_reward(member, record) for member in record.judgements().values()]


def _reward(member: Judgement, record: Record) -> float:
    if member.score is not None:
        return member.score
    reason = member.reason or record.reason or "the judge gave no score"
    is_its_own = record.members == 1 or record.status == "degenerate"  # nothing to compare: not the judge's failure
    remedy = f"GET /v1/judgements/{record.id} has all members; this wire can answer with numbers only."
    status = 422 if is_its_own else 502
    raise Problem(status, "unscored", f"a member is not scored: {reason}.", remedy, {}, {"judgement": record.id})


def _request(chats: Sequence[Sequence[Any]], **options: Any) -> ScoreRequest:
    """A group of these chats. Raises `Problem` for what no request may have."""
    return validated(ScoreRequest, {"trajectories": [{"messages": chat} for chat in chats], **options})


def _group_size(config: ServiceConfig, named: int | None = None) -> int:
    """Number of members in a group: as requested, else as configured. Raises `Problem` if neither is given."""
    if (size := named or config.group_size) is None:
        why = "the request does not say how many members a group has."
        remedy = "Set group_size in the service's settings (GAVEL_SERVICE_GROUP_SIZE=8), or with slime ?size=8."
        raise Problem(422, "no-group-size", why, remedy)
    return size


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


class OrsMessage(BaseModel):
    """One turn: blocks of text, images, reasoning, tool calls and tool results."""

    role: Literal["system", "user", "assistant"]
    blocks: _Chat


class OrsCandidate(BaseModel):
    """One rollout."""

    messages: list[OrsMessage] = Field(min_length=1)
    metadata: dict[str, JsonValue] | None = None

    @property
    def chat(self) -> _Chat:
        """Anthropic's messages, without the agent's thoughts, which judges are not shown."""
        return [
            {"role": turn.role, "content": [_block(block) for block in turn.blocks if block.get("type") != "reasoning"]}
            for turn in self.messages
        ]


def _block(block: JsonValue) -> JsonValue:
    match block:
        case {"type": "tool_call", "id": call, "name": name, "input": given}:
            return {"type": "tool_use", "id": call, "name": name, "input": given}
        case {"type": "tool_result", "tool_call_id": call, "blocks": [*inner]}:
            return {"type": "tool_result", "tool_use_id": call, "content": [_block(one) for one in inner]}
        case {"type": "image", "mimeType": kind, "data": data}:
            return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
        case _:
            return block


class OrsScoreGroup(BaseModel):
    """A group of rollouts of one task."""

    candidates: list[OrsCandidate] = Field(min_length=1)
    task_id: str | None = Field(default=None, max_length=100, pattern=r"^[\w-]+$")
    """Id of a stream that broke, to go on with it."""


@router.post(
    "/{env}/score_group",
    summary="Open Reward Standard: score a group",
    responses={200: {"content": {_EVENTS: {"schema": {"type": "string"}}}}},
    openapi_extra=describe_body(OrsScoreGroup),
)
async def score_group(
    env: Annotated[str, Path(max_length=200, pattern=NAME_PATTERN, description="A preset, or `judge`.")],
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    accept: Annotated[str, Header()] = "",
) -> Response:
    """Scores the candidates relative to each other. A stream that broke is taken up again with its `task_id`."""
    asked = await read_json(request, OrsScoreGroup)
    if env != _OWN and env not in engine.config.rubrics:
        known = ", ".join([_OWN, *engine.config.rubrics])
        raise Problem(404, "no-such-environment", f"there is no environment {env!r}.", f"There are: {known}.")
    if asked.task_id is not None:
        record = await engine.get(asked.task_id, caller)
    else:
        chats = [candidate.chat for candidate in asked.candidates]
        record = await engine.submit(_request(chats, preset=None if env == _OWN else env), caller)
    kept = [candidate.metadata for candidate in asked.candidates]
    if _EVENTS in accept:
        return StreamingResponse(_stream_events(engine, record, kept), media_type=_EVENTS, headers=UNBUFFERED)
    return JSONResponse(_ors_scores(await wait_for(request, record), kept))


def _ors_scores(record: Record, kept: list[dict[str, JsonValue] | None]) -> dict[str, Any]:
    """`reward` and `metadata` of each candidate: its own, with Gavel's explanation and standard error."""
    rewards, members = _rewards(record), record.judgements().values()
    if len(rewards) != len(kept):
        raise InvalidRequestError("the task_id is that of another group.", "Leave task_id out.")
    scores: list[dict[str, Any]] = []
    for reward, own, member in zip(rewards, kept, members, strict=True):
        ours = {"explanation": member.explanation, "standard_error": member.standard_error}
        scores.append({"reward": reward, "metadata": {**(own or {}), "gavel": ours}})
    return {"scores": scores}


async def _stream_events(
    engine: Engine, record: Record, kept: list[dict[str, JsonValue] | None]
) -> AsyncIterator[bytes]:
    yield _event("task_id", record.id)
    waiting = asyncio.ensure_future(engine.result(record))
    try:
        while not (await asyncio.wait([waiting], timeout=_PING_SECONDS))[0]:
            yield b": ping\r\n\r\n"
        yield _event("end", json.dumps(_ors_scores(waiting.result(), kept)))
    except ServiceError as error:
        yield _event("error", error.message)
    finally:
        waiting.cancel()


def _event(name: str, data: str) -> bytes:
    lines = "".join(f"data: {line}\r\n" for line in data.splitlines() or [""])
    return f"event: {name}\r\n{lines}\r\n".encode()


class NemoParams(BaseModel):
    """What the policy was asked, as in OpenAI's Responses API."""

    input: str | _Chat
    instructions: str | None = None
    tools: _Chat | None = None

    @property
    def items(self) -> _Chat:
        """The prompt as Responses items, which judges are shown as chat messages."""
        system: _Chat = [{"role": "system", "content": self.instructions}] if self.instructions else []
        given: _Chat = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        return [*system, *given]


class NemoResponse(BaseModel):
    """What it answered, as in OpenAI's Responses API."""

    output: _Chat


class NemoVerify(BaseModel):
    """One rollout of a group."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    responses_create_params: NemoParams
    response: NemoResponse
    principle: str | None = Field(default=None, pattern=r"\S")
    rollout_index: Integer = Field(alias="_ng_rollout_index", ge=0)
    task_index: Integer | None = Field(default=None, alias="_ng_task_index")
    group_id: str | None = Field(default=None, alias="_ng_group_id", min_length=1, max_length=200)
    group_attempt: Integer = Field(default=0, alias="_ng_group_attempt", ge=0)
    prompt_id: str | None = None

    @property
    def group(self) -> str:
        """The name of its group."""
        if self.group_id is not None:
            return f"nemo-gym/id/{_digest(self.group_id)}/{self.group_attempt}"
        told = [self.task_index, self.prompt_id, self.responses_create_params.input, self.principle]
        return f"nemo-gym/prompt/{_digest(told)}/{self.group_attempt}"


class NemoCompare(BaseModel):
    """A group of responses to one conversation."""

    conversation_history: _Chat
    response_objs: list[NemoResponse] = Field(min_length=1)
    principle: str | None = Field(default=None, pattern=r"\S")


@router.post("/compare", summary="NeMo Gym: compare responses", openapi_extra=describe_body(NemoCompare))
async def compare(request: Request, engine: TheEngine, caller: TheCaller) -> Response:
    """Scores responses relative to each other; `principle` is the rubric."""
    asked = await read_json(request, NemoCompare)
    chats = [[*asked.conversation_history, *response.output] for response in asked.response_objs]
    record = await wait_for(request, await engine.submit(_request(chats, rubric=asked.principle), caller))
    metrics = {} if record.cost_usd is None else {"calls": float(record.calls), "cost_usd": record.cost_usd}
    return JSONResponse({"rewards": _rewards(record), "comparison_results": None, "metrics": metrics})


@router.post("/verify", summary="NeMo Gym: the reward of one rollout", openapi_extra=describe_body(NemoVerify))
async def verify(request: Request, engine: TheEngine, caller: TheCaller) -> Response:
    """Waits for the other rollouts of the group, and answers with the rollout's reward, from 0 to 1.

    A group has as many rollouts as the service's setting group_size says. One that is not scored is masked.
    """
    body = await read_body(request)
    asked = await parse(NemoVerify, body)
    params, name = asked.responses_create_params, str(asked.rollout_index)
    member = {
        "expected": _group_size(engine.config),
        "id": name,
        "messages": [*params.items, *asked.response.output],
        "tools": params.tools,
        "rubric": asked.principle,
    }
    packed = zlib.compress(body, 1)  # the response repeats the body
    is_round = asked.group_id is None
    group = await engine.join_group(asked.group, validated(MemberRequest, member), caller, begins_rounds=is_round)
    del body, asked, params, member  # frees memory while it waits: its messages are in the database
    scored = (await wait_for(request, group.record)).judgements()[name]
    answer = json.loads(zlib.decompress(packed)) | {"reward": scored.score or 0.0, "mask_sample": scored.score is None}
    if scored.score is None:
        answer |= {"failure_kind": "judge_failed", "failure_reason": scored.reason}
    return JSONResponse(answer)


class SlimeSample(BaseModel):
    """One sample of a prompt."""

    prompt: str | list[ChatMessage]
    """The prompt as text, or as chat messages."""
    response: str
    label: JsonValue = None
    """Shown to the judge as the task's reference, where it is a text."""

    @property
    def messages(self) -> _Chat:
        prompt: _Chat = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        return [*prompt, {"role": "assistant", "content": self.response}]

    @property
    def reference(self) -> str | None:
        return self.label if isinstance(self.label, str) and self.label else None


class SlimeSamples(RootModel[SlimeSample | Annotated[list[SlimeSample], Field(min_length=1)]]):
    """One sample, or the samples of a group."""


@contextmanager
def _lowest_position(taken: dict[tuple[str, ...], set[int]], *where: str) -> Generator[int]:
    """The lowest position, from 0, that no other caller who waits here holds; held while the block runs."""
    positions = taken.setdefault(where, set())
    positions.add(lowest := next(number for number in range(len(positions) + 1) if number not in positions))
    try:
        yield lowest
    finally:
        positions.discard(lowest)
        if not positions:
            taken.pop(where, None)


@router.post(
    "/slime/{group}", summary="slime: the reward of a sample, or of a group", openapi_extra=describe_body(SlimeSamples)
)
async def remote_rm(
    group: Annotated[str, Path(max_length=100, pattern=NAME_PATTERN, description="Name of the run.")],
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    size: Annotated[int | None, Query(ge=1, description="Samples of a prompt. Default: group_size.")] = None,
) -> Response:
    """One sample waits for the others of its prompt and is answered with a number; a list with a list."""
    asked = (await read_json(request, SlimeSamples)).root
    if isinstance(asked, list):
        if any((one.reference, one.prompt) != (asked[0].reference, asked[0].prompt) for one in asked):
            raise InvalidRequestError("the samples have different labels or prompts.", "Send one group of one task.")
        whole = _request([sample.messages for sample in asked], reference=asked[0].reference)
        return JSONResponse(_rewards(await wait_for(request, await engine.submit(whole, caller))))
    name, response = f"slime/{group}/{_digest([asked.prompt, asked.label])}", _digest(asked.response)
    with _lowest_position(request.app.state.slime_samples, caller.key_id, name, response) as place:
        id = f"{response}-{place}"
        member = {
            "expected": _group_size(engine.config, size),
            "id": id,
            "messages": asked.messages,
            "reference": asked.reference,
        }
        joined = await engine.join_group(name, validated(MemberRequest, member), caller, begins_rounds=True)
        record = await wait_for(request, joined.record)
    return JSONResponse(_reward(record.judgements()[id], record))


BODIES = (OrsScoreGroup, NemoVerify, NemoCompare, SlimeSamples)
