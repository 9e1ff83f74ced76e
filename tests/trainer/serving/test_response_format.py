"""Replies that a grammar holds to a schema, and calls that a policy is made to make."""

import json
from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from jsonschema import Draft202012Validator
from openai import BadRequestError
from pydantic import BaseModel

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.training_batch import make_batch
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.grammar import Grammars
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import load_base
from gavel.trainer.serving.chat import ChatCompletions
from tests.trainer.conftest import OPENING, TOOLS, WholeModel
from tests.trainer.serving.served import QUESTION, SYSTEM, client_of
from tests.trainer.serving.served import TOOLS as DESK_TOOLS

pytestmark = pytest.mark.slow


MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


class Decision(BaseModel):
    action: Literal["refund", "refuse", "escalate"]
    amount: Literal[0, 5, 20] | None
    sure: bool


SCHEMA = Decision.model_json_schema() | {"additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "decision", "schema": SCHEMA, "strict": True}}


async def ask(server, **settings):
    async with client_of(server) as client:
        asked = {"model": "desk", "messages": MESSAGES, "max_tokens": 120, "seed": 7, **settings}
        return (await client.chat.completions.create(**asked)).choices[0]


@pytest.mark.parametrize("seed", range(3))
async def test_a_reply_fits_its_schema_and_is_left_out_of_training_with_its_reason(server, policy, seed):
    choice = await ask(server, response_format=FORMAT, seed=seed)
    assert choice.finish_reason == "stop"
    Draft202012Validator(SCHEMA).validate(json.loads(choice.message.content))
    assert choice.shaped_by == ["response_format"]
    members = [Trajectory(messages_and_choices=[*MESSAGES, choice], reward=reward) for reward in (0.0, 1.0)]
    batch = make_batch([TrajectoryGroup(members)], TrainConfig(), policy)
    assert not batch.sequences
    assert batch.left_out_members[LeftOut.SHAPED_SAMPLING] == 2


async def test_beside_tools_a_reply_may_call_one_which_stays_the_policys_own(server):
    plain = await ask(server, tools=DESK_TOOLS, temperature=0)
    under = await ask(server, tools=DESK_TOOLS, temperature=0, response_format=FORMAT)
    assert plain.message.tool_calls
    assert under.token_ids == plain.token_ids
    given, own = ([token.logprob for token in each.logprobs.content] for each in (under, plain))
    assert given == pytest.approx(own, abs=1e-4)
    assert "shaped_by" not in under.model_extra


@pytest.mark.parametrize(("schema", "stream"), [({"type": "objct"}, True), ({"$ref": "#/nowhere"}, False)])
async def test_a_schema_that_cannot_be_kept_is_a_400_that_says_what(server, schema, stream):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(BadRequestError, match="no grammar can be made") as error:
        await ask(server, response_format=form, stream=stream)
    assert error.value.code == "invalid_json_schema"


@pytest.fixture
def weak(policy) -> Iterator[ChatCompletions]:
    """Of a policy whose every token is drawn nearly at random."""
    model = load_base(EMBEDDED_POLICY, torch.float32, "cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.05)
    grammars = Grammars(policy.tokenizer, policy.vocabulary)
    engine = TransformersEngine(model, slots=4, max_context=1024, grammars=grammars)
    engine.publish(WholeModel(model), 0)
    yield ChatCompletions(engine, policy, model="clerk")
    engine.close()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "refund"}}])
async def test_however_weak_the_policy_a_forced_call_can_be_read_and_is_marked(weak, choice):
    brief = [{**tool, "function": {**tool["function"], "parameters": BRIEF}} for tool in TOOLS]
    body = {"model": "clerk", "messages": OPENING, "tools": brief, "tool_choice": choice, "max_tokens": 200, "n": 3}
    for made in (await weak.complete(body | {"seed": 1}))["choices"]:
        (call,) = made["message"]["tool_calls"]
        assert call["function"]["name"] in (["look_up_order", "refund"] if choice == "required" else ["refund"])
        assert json.loads(call["function"]["arguments"]).keys() == {"order_id"}
        assert (made["shaped_by"], made["discarded_attempts"]) == (["tool_choice"], 1)


BRIEF = {
    "type": "object",
    "properties": {"order_id": {"type": "string", "enum": ["12", "7"]}},
    "required": ["order_id"],
    "additionalProperties": False,
}
