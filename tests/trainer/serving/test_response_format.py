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
from gavel.trainer.engines.protocol import Grammar
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import load_base
from gavel.trainer.serving.chat import ChatCompletions, call_opening, call_rest
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


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("seed", range(3))
async def test_a_reply_fits_its_schema_and_is_marked_as_none_of_the_policys(server, seed, temperature):
    choice = await ask(server, response_format=FORMAT, seed=seed, temperature=temperature)
    assert choice.finish_reason == "stop"
    Draft202012Validator(SCHEMA).validate(json.loads(choice.message.content))
    assert choice.shaped_by == ["response_format"]


async def test_a_turn_that_the_schema_changed_is_left_out_of_training_with_its_reason(server, policy):
    choice = await ask(server, response_format=FORMAT)
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


async def test_a_call_that_was_required_is_made_under_a_schema_too(server):
    choice = await ask(server, tools=DESK_TOOLS, tool_choice="required", response_format=FORMAT, seed=3)
    assert choice.message.tool_calls


@pytest.mark.parametrize(
    "schema", [{"type": "objct"}, {"not": {}}, {"type": "array", "uniqueItems": True}, {"$ref": "#/nowhere"}]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_cannot_be_kept_is_a_400_that_says_what(server, schema, stream):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(BadRequestError, match="no grammar can be made") as error:
        await ask(server, response_format=form, stream=stream)
    assert error.value.code == "invalid_json_schema"


async def test_a_text_completion_shows_its_likeliest_tokens_and_where_each_begins(server):
    async with client_of(server) as client:
        found = await client.completions.create(model="desk", prompt="The order", logprobs=2, temperature=0, seed=1)
    logprobs = found.choices[0].logprobs
    assert all(len(top) <= 2 for top in logprobs.top_logprobs)
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())
    assert logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]


class Wordless:
    """Opens an answer otherwise than it shows one."""

    def render_ids(self, messages, *, tools=None, add_generation_prompt=False):
        return [9] if add_generation_prompt else [1, 2, 3]


def test_a_format_that_opens_otherwise_has_no_such_beginning():
    assert call_opening(Wordless(), TOOLS, None) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, "refund"])
def test_the_rest_of_a_call_is_a_known_name_and_arguments_that_fit_their_schema(policy, name):
    opening, rule = call_rest(policy.renderer, TOOLS, name, policy.decode)
    stops = frozenset(policy.renderer.get_stop_token_ids())
    grammars = Grammars(policy.tokenizer, policy.vocabulary)
    (end,) = policy.tokenizer.encode("</tool_call>", add_special_tokens=False)

    def taken(text: str) -> bool:
        constraint = grammars.constraint(Grammar(call=rule), opening, stops)
        tokens = [*policy.tokenizer.encode(text, add_special_tokens=False), end]
        return all(not constraint.take(min(stops)) and constraint.take(token) for token in tokens) and constraint.take(
            min(stops)
        )

    called = "" if name else "refund"
    assert taken(f'{called}", "arguments": {{"order_id": "12"}}}}\n')
    assert not taken(f'{called}", "arguments": {{}}}}\n'), "order_id is required"
    assert not taken(f'{called}s", "arguments": {{"order_id": "12"}}}}\n')
    assert not taken(f'{called}", "arguments": {{"order_id": "12"}}\n')


class Tagged(Wordless):
    """Writes arguments otherwise than as JSON."""

    def render_ids(self, messages, *, tools=None, add_generation_prompt=False):
        if add_generation_prompt:
            return [1]
        function = messages[-1]["tool_calls"][0]["function"]
        shown = f"<call>{function['name']}:{len(function['arguments'])}"
        return [1, *(ord(letter) for letter in shown)]

    def get_stop_token_ids(self):
        return [0]


def test_a_format_that_writes_arguments_otherwise_goes_on_freely():
    opening, rule = call_rest(Tagged(), TOOLS, None, lambda ids: "".join(map(chr, ids)))  # type: ignore[arg-type]
    assert ("".join(map(chr, opening)), rule) == ("<call>", "")


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
