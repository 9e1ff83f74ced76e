"""The wires of other systems, translated into groups and judged in the same way. They answer with numbers: what is not
scored is a refusal, never a number.

    POST /{env}/score_group   Open Reward Standard, as openreward's client asks for it: a group, answered as
                              server-sent events (`task_id`, then `end` with the scores, or `error`) or as JSON
    POST /compare, /verify    NeMo Gym (`genrm_compare`): a group; one rollout, answered once its group is complete
    POST /slime/{group}       slime's `remote_rm`: a group as a list; one sample, answered once its group is complete

slime is run with `--rm-url http://127.0.0.1:8080/slime/run-7?size=8`. Its samples have no id: those of one prompt and
label are a group, and two of one text are told apart by the callers that wait for them. One that comes again after its
connection broke takes its earlier place.
"""

import asyncio
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.http.problems import Problem, documented, problem_of
from gavel.judge.service.http.requests import (
    UNBUFFERED,
    TheCaller,
    TheEngine,
    built,
    describe_body,
    parse,
    read_body,
    read_json,
    while_connected,
)
from gavel.judge.service.schemas.bodies import (
    NAME_PATTERN,
    ChatMessage,
    Integer,
    MemberRequest,
    ScoreRequest,
    TrajectoryIn,
)
from gavel.judge.service.schemas.records import GroupRecord, Record
from gavel.scenarios.formats.openai_responses import messages
from gavel.scenarios.judgement import Judgement

router = APIRouter(tags=["wires"])
OWN = "judge"
"""The environment of ORS whose rubric is that of the service's judge; others are presets."""
_PING_SECONDS = 10.0
_EVENTS = "text/event-stream"
_OPEN = ConfigDict(extra="allow", populate_by_name=True)
_REFUSALS = documented(400, 404, 408, 409, 413, 415, 422, 502, 503)


def _group_size(config: ServiceConfig, named: int | None = None) -> int:
    """Members of a group: as named, else as set. Raises `Problem` when neither says it."""
    size = named or config.group_size
    if size is None:
        raise Problem(
            422,
            "no-group-size",
            "the request does not say how many members a group has.",
            "Set group_size in the service's settings (GAVEL_SERVICE_GROUP_SIZE=8), or with slime ?size=8 in the URL.",
        )
    return size


def _rewards(record: Record) -> list[float]:
    """The scores of all members, in the request's order. Raises `Problem` when one has none."""
    return [_reward(member, record) for member in _members(record)]


def _members(record: Record | None) -> list[Judgement]:
    """The members of a judged group. Raises `Problem` for one that is not finished, or failed."""
    if record is None or record.verdict is None:
        raise Problem(
            503,
            "not-judged-yet",
            "the group is not judged yet; the request is stored, and judging goes on.",
            "Send the same request again.",
            {"Retry-After": "5"},
        )
    if record.verdict.group is None:
        failed = record.verdict
        raise Problem(502, "judge-failed", failed.problem or "", failed.remedy, {}, {"judgement": record.id})
    return record.verdict.members


def _reward(member: Judgement, record: Record) -> float:
    """The member's score. Raises `Problem` when it has none."""
    if member.score is None:
        group = record.verdict.group if record.verdict else None
        reason = member.reason or (group.reason if group else None) or "the judge gave no score"
        is_its_own = record.members == 1 or record.status == "degenerate"  # nothing to compare: no judge is to blame
        raise Problem(
            422 if is_its_own else 502,
            "unscored",
            f"a member is not scored: {reason}.",
            f"GET /v1/judgements/{record.id} has all members; this wire can answer with numbers only.",
            {},
            {"judgement": record.id},
        )
    return member.score


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
        **_REFUSALS,
    },
    openapi_extra=describe_body(OrsScoreGroup),
)
async def score_group(
    env: Annotated[str, Path(max_length=200, description=f"A rubric preset's name, or {OWN!r}.", examples=[OWN])],
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    accept: Annotated[str, Header()] = "",
) -> Response:
    """Scores candidates relative to each other. A group with a candidate that is not scored is refused as a whole."""
    asked = await read_json(request, OrsScoreGroup)
    if env != OWN and env not in engine.config.rubrics:
        names = ", ".join([OWN, *engine.config.rubrics])
        raise Problem(404, "no-such-environment", f"there is no environment {env!r}.", f"There are: {names}.")
    if asked.task_id is not None:
        record = await engine.get(asked.task_id, caller)
    else:
        trajectories = [built(TrajectoryIn, messages=_chat_of_blocks(each)) for each in asked.candidates]
        score = built(ScoreRequest, trajectories=trajectories, preset=None if env == OWN else env)
        record = (await engine.submit(score, caller)).record
    kept = [candidate.metadata for candidate in asked.candidates]
    if _EVENTS in accept:
        return StreamingResponse(_events(engine, record, kept), media_type=_EVENTS, headers=UNBUFFERED)
    finished = await while_connected(request, engine.result(record))
    answer = Response(_scores(finished, kept), media_type="application/json")
    await engine.answered(finished)
    return answer


def _scores(record: Record, kept: list[dict[str, JsonValue] | None]) -> str:
    rewards = _rewards(record)
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


def _chat_of_blocks(candidate: OrsCandidate) -> list[dict[str, JsonValue]]:
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


class NemoParams(BaseModel):
    """What the policy was asked, as in OpenAI's Responses API."""

    model_config = _OPEN

    input: str | list[dict[str, JsonValue]]
    instructions: str | None = None
    tools: list[dict[str, JsonValue]] | None = None


class NemoResponse(BaseModel):
    """What it answered, as in OpenAI's Responses API."""

    model_config = _OPEN

    output: list[dict[str, JsonValue]]


class NemoVerify(BaseModel):
    """One rollout of a group."""

    model_config = _OPEN

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


class NemoVerified(BaseModel):
    """The rollout with its reward; further fields are those of the request."""

    model_config = _OPEN

    reward: float
    """From 0 to 1; 0 where `mask_sample` says that it is none."""
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class NemoCompare(BaseModel):
    """A group of responses to one conversation."""

    conversation_history: list[dict[str, JsonValue]]
    response_objs: list[NemoResponse] = Field(min_length=1)
    principle: str | None = Field(default=None, pattern=r"\S")


class NemoCompared(BaseModel):
    """One reward for each response, in order."""

    rewards: list[float]
    comparison_results: None = None
    metrics: dict[str, float]


@router.post(
    "/compare",
    summary="NeMo Gym: compare responses",
    response_model=NemoCompared,
    responses=_REFUSALS,
    openapi_extra=describe_body(NemoCompare),
)
async def compare(request: Request, engine: TheEngine, caller: TheCaller) -> Response:
    """Scores responses relative to each other; `principle` is the rubric."""
    asked = await read_json(request, NemoCompare)
    trajectories = [
        built(TrajectoryIn, messages=[*asked.conversation_history, *_chat_of_items(response.output)])
        for response in asked.response_objs
    ]
    score = built(ScoreRequest, trajectories=trajectories, rubric=asked.principle)
    record = await while_connected(request, engine.score(score, caller))
    rewards = _rewards(record)
    metrics = {"calls": float(record.calls), "cost_usd": record.cost_usd or 0.0} if record.cost_usd is not None else {}
    answer = Response(NemoCompared(rewards=rewards, metrics=metrics).model_dump_json(), media_type="application/json")
    await engine.answered(record)
    return answer


@router.post(
    "/verify",
    summary="NeMo Gym: the reward of one rollout",
    response_model=NemoVerified,
    responses=_REFUSALS,
    openapi_extra=describe_body(NemoVerify),
)
async def verify(request: Request, engine: TheEngine, caller: TheCaller) -> Response:
    """Waits for the other rollouts of the group, and answers with the rollout's reward.

    A group has as many rollouts as the service's setting group_size says. One that is not scored is masked.
    """
    body = await read_body(request)
    member, group_name, is_named = _rollout(engine, await parse(NemoVerify, body))
    name, packed = member.id, zlib.compress(body, 1)  # the answer repeats the body
    group = await engine.rendezvous.join(group_name, member, caller, begins_rounds=not is_named)
    del body, member
    record, scored = await while_connected(request, _waited(engine, group, name))
    answer: dict[str, Any] = json.loads(zlib.decompress(packed))
    answer |= {"reward": scored.score or 0.0, "mask_sample": scored.score is None}
    if scored.score is None:
        answer |= {"failure_kind": "judge_failed", "failure_reason": scored.reason}
    response = _json(answer)
    await engine.answered(record)
    return response


def _rollout(engine: Engine, asked: NemoVerify) -> tuple[MemberRequest, str, bool]:
    """The rollout as a member, the name of its group, and whether the request named it."""
    params = asked.responses_create_params
    given: list[dict[str, JsonValue]] = (
        [{"role": "user", "content": params.input}] if isinstance(params.input, str) else params.input
    )
    system = [{"role": "system", "content": params.instructions}] if params.instructions else []
    member = built(
        MemberRequest,
        expected=_group_size(engine.config),
        id=str(asked.rollout_index),
        messages=[*system, *_chat_of_items(given), *_chat_of_items(asked.response.output)],
        tools=[_tool(tool) for tool in params.tools] if params.tools else None,
        rubric=asked.principle,
    )
    return member, asked.group, asked.group_id is not None


def _chat_of_items(items: list[dict[str, JsonValue]]) -> list[dict[str, Any]]:
    """Responses items as chat messages. Raises `Problem` for items that are none."""
    try:
        return messages(items)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Problem(
            422,
            "invalid-request",
            f"the items cannot be read as those of OpenAI's Responses: {type(error).__name__} ({error!s:.60}).",
            "Send input and output as in the Responses API.",
        ) from error


def _tool(tool: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """A tool of the Responses API as in the chat API."""
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


class SlimeSample(BaseModel):
    """One sample of a prompt."""

    prompt: str | list[ChatMessage]
    """The prompt as text, or as chat messages."""
    response: str
    label: JsonValue = None
    """Shown to the judge as the task's reference, where it is a text."""

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.response}]
        return [*self.prompt, {"role": "assistant", "content": self.response}]

    @property
    def reference(self) -> str | None:
        return self.label if isinstance(self.label, str) and self.label else None


class SlimeSamples(RootModel[SlimeSample | Annotated[list[SlimeSample], Field(min_length=1)]]):
    """One sample, or the samples of a group."""


class Places:
    """Which places of a group are taken by callers that wait here."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, ...], set[int]] = {}

    @contextmanager
    def lowest(self, *where: str) -> Generator[int, None, None]:
        """The lowest free place, from 0, taken within the block."""
        taken = self._taken.setdefault(where, set())
        place = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(place)
        try:
            yield place
        finally:
            taken.discard(place)
            if not taken:
                self._taken.pop(where, None)


@router.post(
    "/slime/{group}",
    summary="slime: the reward of a sample, or of a group",
    response_model=float | list[float],
    responses=_REFUSALS,
    openapi_extra=describe_body(SlimeSamples),
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
        record = await while_connected(request, engine.score(_whole_group(asked), caller))
        answer = _json(_rewards(record))
        await engine.answered(record)
        return answer
    name, response = f"slime/{group}/{_digest([asked.prompt, asked.label])}", _digest(asked.response)
    places: Places = request.app.state.places
    with places.lowest(caller.key_id, name, response) as place:
        member = built(
            MemberRequest,
            expected=_group_size(engine.config, size),
            id=f"{response}-{place}",
            messages=asked.messages,
            reference=asked.reference,
        )
        joined = await engine.rendezvous.join(name, member, caller, begins_rounds=True)
        record, scored = await while_connected(request, _waited(engine, joined, member.id))
    answer = _json(_reward(scored, record))
    await engine.answered(record)
    return answer


def _whole_group(samples: list[SlimeSample]) -> ScoreRequest:
    """The samples as a request. Raises `Problem` for samples of several tasks."""
    references = {sample.reference for sample in samples}
    if len(references) > 1:
        raise Problem(422, "invalid-request", "the samples have different labels.", "Send one group of one task.")
    if any(sample.prompt != samples[0].prompt for sample in samples):
        raise Problem(422, "invalid-request", "the samples have different prompts.", "Send one group of one task.")
    trajectories = [built(TrajectoryIn, messages=sample.messages) for sample in samples]
    return built(ScoreRequest, trajectories=trajectories, reference=references.pop())


async def _waited(engine: Engine, group: GroupRecord, member: str) -> tuple[Record, Judgement]:
    """The group's judgement and the member's. Raises `Problem` when the time to wait is over, or the judge failed."""
    record = await engine.rendezvous.result(group, engine.config.limits.wait_seconds)
    members = _members(record)
    assert record is not None
    assert record.verdict is not None
    return record, members[record.verdict.ids.index(member)]


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
