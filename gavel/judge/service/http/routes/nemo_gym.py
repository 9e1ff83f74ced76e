"""`/verify` and `/compare`: the judge server of NeMo Gym (`genrm_compare`), over the rendezvous and the judge.

`/compare` takes a whole group. `/verify` takes one rollout, and is answered once its group is complete: the rollouts
of one `_ng_group_id` and `_ng_group_attempt`, else of one task and prompt.
"""

import hashlib
import json
import zlib
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.requests import Request
from starlette.responses import Response

from gavel.judge.service.engine.caller import Caller
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.late_answer import LateAnswer
from gavel.judge.service.http.problems import Problem, documented
from gavel.judge.service.http.request_body import Body, body_of, built, parsed, read_body
from gavel.judge.service.http.route_access import TheCaller, TheEngine
from gavel.judge.service.http.wire_answers import judged, rewards_of, size_of_groups
from gavel.judge.service.schemas.bodies import Integer, MemberRequest, ScoreRequest, TrajectoryIn
from gavel.judge.service.schemas.records import GroupRecord
from gavel.scenarios.formats.openai_responses import messages

router = APIRouter(tags=["wires"])
_OPEN = ConfigDict(extra="allow", populate_by_name=True)
_REFUSALS = documented(400, 404, 408, 409, 413, 415, 422, 502, 503)


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
    openapi_extra=body_of(NemoCompare),
)
async def compare(body: Body, engine: TheEngine, caller: TheCaller) -> Response:
    """Scores responses relative to each other; `principle` is the rubric."""
    asked = parsed(NemoCompare, body)
    trajectories = [
        built(TrajectoryIn, messages=[*asked.conversation_history, *_messages(response.output)])
        for response in asked.response_objs
    ]
    record = await engine.score(built(ScoreRequest, trajectories=trajectories, rubric=asked.principle), caller)
    rewards = rewards_of(record)
    metrics = {"calls": float(record.calls), "cost_usd": record.cost_usd or 0.0} if record.cost_usd is not None else {}
    answer = Response(NemoCompared(rewards=rewards, metrics=metrics).model_dump_json(), media_type="application/json")
    await engine.answered(record)
    return answer


@router.post(
    "/verify",
    summary="NeMo Gym: the reward of one rollout",
    response_model=NemoVerified,
    responses=_REFUSALS,
    openapi_extra=body_of(NemoVerify),
)
async def verify(request: Request, engine: TheEngine, caller: TheCaller) -> Response:
    """Waits for the other rollouts of the group, and answers with the rollout's reward.

    A group has as many rollouts as the service's setting group_size says. One that is not scored is masked.
    """
    return LateAnswer(partial(_verified, engine, *await _joined(request, engine, caller)))


async def _verified(engine: Engine, group: GroupRecord, member: str, packed: bytes) -> Response:
    """The rollout as it came with its reward; `packed` is its body, compressed."""
    record = await engine.rendezvous.result(group, engine.config.limits.wait_seconds)
    members = judged(record)
    assert record is not None
    assert record.verdict is not None
    scored = members[record.verdict.ids.index(member)]
    answer: dict[str, Any] = json.loads(zlib.decompress(packed))
    answer |= {"reward": scored.score or 0.0, "mask_sample": scored.score is None}
    if scored.score is None:
        answer |= {"failure_kind": "judge_failed", "failure_reason": scored.reason}
    response = Response(json.dumps(answer), media_type="application/json")
    await engine.answered(record)
    return response


async def _joined(request: Request, engine: Engine, caller: Caller) -> tuple[GroupRecord, str, bytes]:
    """The group, the member's id, and the body, which the answer repeats: compressed while it waits."""
    body = await read_body(request)
    asked = parsed(NemoVerify, body)
    params = asked.responses_create_params
    given: list[dict[str, JsonValue]] = (
        [{"role": "user", "content": params.input}] if isinstance(params.input, str) else params.input
    )
    system = [{"role": "system", "content": params.instructions}] if params.instructions else []
    member = built(
        MemberRequest,
        expected=size_of_groups(engine.config),
        id=str(asked.rollout_index),
        messages=[*system, *_messages(given), *_messages(asked.response.output)],
        tools=[_tool(tool) for tool in params.tools] if params.tools else None,
        rubric=asked.principle,
    )
    group = await engine.rendezvous.join(asked.group, member, caller, begins_rounds=asked.group_id is None)
    return group, member.id, zlib.compress(body, 1)


def _messages(items: list[dict[str, JsonValue]]) -> list[dict[str, Any]]:
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


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
