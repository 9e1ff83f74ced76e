"""The tokens that open a call, in real chat formats."""

import json
from collections.abc import Iterator

import pytest
import torch

from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.grammar import Grammars
from gavel.trainer.engines.protocol import Grammar
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import load_base
from gavel.trainer.serving.chat import ChatCompletions, call_opening, call_rest
from tests.trainer.conftest import OPENING, TOOLS, WholeModel


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
    yield ChatCompletions(engine, policy.renderer, policy.decode, model="clerk", max_context=1024)
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
