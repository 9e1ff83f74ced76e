"""`POST /slime/{group}`: slime's `remote_rm`, which sends one sample at a time, or a whole group as a list.

    --rm-type remote_rm --rm-url http://127.0.0.1:8080/slime/run-7?size=8

A sample has no id, so the samples of one prompt and label are a group, and two samples of one text are told apart by
the callers that wait for them: one that comes again after its connection broke takes its earlier place.
"""

import hashlib
import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, JsonValue, RootModel
from starlette.requests import Request
from starlette.responses import Response

from gavel.judge.service.engine.caller import Caller
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.late_answer import LateAnswer
from gavel.judge.service.http.problems import Problem, documented
from gavel.judge.service.http.request_body import body_of, built, parsed, read_body
from gavel.judge.service.http.route_access import TheCaller, TheEngine
from gavel.judge.service.http.wire_answers import judged, reward_of, rewards_of, size_of_groups
from gavel.judge.service.schemas.bodies import NAME_PATTERN, ChatMessage, MemberRequest, ScoreRequest, TrajectoryIn
from gavel.judge.service.schemas.records import GroupRecord

router = APIRouter(tags=["wires"])


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
    responses=documented(400, 404, 408, 409, 413, 415, 422, 502, 503),
    openapi_extra=body_of(SlimeSamples),
)
async def remote_rm(
    group: Annotated[str, Path(max_length=100, pattern=NAME_PATTERN, description="Name of the run.")],
    request: Request,
    engine: TheEngine,
    caller: TheCaller,
    size: Annotated[int | None, Query(ge=1, description="Samples of a prompt. Default: group_size.")] = None,
) -> Response:
    """One sample waits for the others of its prompt and is answered with a number; a list with a list."""
    asked = parsed(SlimeSamples, await read_body(request)).root
    if isinstance(asked, list):
        return _json(await _at_once(engine, caller, asked))
    texts = json.dumps([asked.prompt, asked.label], sort_keys=True)
    name = f"slime/{group}/{_digest(texts)}"
    response = _digest(asked.response)
    places: Places = request.app.state.places
    with ExitStack() as stack:
        place = stack.enter_context(places.lowest(caller.key_id, name, response))
        member = built(
            MemberRequest,
            expected=size_of_groups(engine.config, size),
            id=f"{response}-{place}",
            messages=asked.messages,
            reference=asked.reference,
        )
        joined = await engine.rendezvous.join(name, member, caller, begins_rounds=True)
        return LateAnswer(partial(_rewarded, engine, joined, member.id, stack.pop_all()))


async def _rewarded(engine: Engine, group: GroupRecord, member: str, place: ExitStack) -> Response:
    """The sample's reward; its place is taken until then."""
    with place:
        record = await engine.rendezvous.result(group, engine.config.limits.wait_seconds)
    members = judged(record)
    assert record is not None
    assert record.verdict is not None
    answer = _json(reward_of(members[record.verdict.ids.index(member)], record))
    await engine.answered(record)
    return answer


async def _at_once(engine: Engine, caller: Caller, samples: list[SlimeSample]) -> list[float]:
    references = {sample.reference for sample in samples}
    if len(references) > 1:
        raise Problem(422, "invalid-request", "the samples have different labels.", "Send one group of one task.")
    if any(sample.prompt != samples[0].prompt for sample in samples):
        raise Problem(422, "invalid-request", "the samples have different prompts.", "Send one group of one task.")
    trajectories = [built(TrajectoryIn, messages=sample.messages) for sample in samples]
    record = await engine.score(built(ScoreRequest, trajectories=trajectories, reference=references.pop()), caller)
    rewards = rewards_of(record)
    await engine.answered(record)
    return rewards


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
