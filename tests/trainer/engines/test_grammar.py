"""What a constraint allows is JSON of the schema, a tool call or a thought; tokens are those of the embedded policy."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer

from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.engines.grammar import Grammar, GrammarError, Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
        "items": {"type": "array", "items": {"enum": ["mug", "lämp", "{[]}"]}, "maxItems": 3},
        "sum": {"type": ["integer", "null"]},
        "paid": {"type": "boolean"},
    },
    "required": ["order", "items", "sum"],
    "additionalProperties": False,
}
tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
VOCABULARY = len(tokenizer) + 5
STOP = tokenizer.convert_tokens_to_ids("<|im_end|>")
STOPS = frozenset([STOP])
CLOSING = {token for token in range(VOCABULARY - 5) if tokenizer.decode([token]).strip() in ('"', "}", "]", '"}')}
grammars = Grammars(tokenizer, VOCABULARY)


def constraint(schema=SCHEMA, opening=(), prompt=(5,)):
    return grammars.constraint(Grammar(json.dumps(schema), tuple(opening)), prompt, STOPS)


def ids(text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


orders = st.fixed_dictionaries(
    {
        "order": st.from_regex(r"\A[A-Z]{2}[0-9]{1,3}\Z"),
        "items": st.lists(st.sampled_from(["mug", "lämp", "{[]}"]), max_size=3),
        "sum": st.none() | st.integers(-(10**6), 10**6),
    },
    optional={"paid": st.booleans()},
)


@given(order=orders, indent=st.sampled_from([None, 2]))
@settings(max_examples=20, deadline=None)
def test_every_json_text_of_the_schema_is_taken_and_only_its_end_may_stop(order, indent):
    in_order = {name: order[name] for name in SCHEMA["properties"] if name in order}
    text = json.dumps(in_order, ensure_ascii=False, indent=indent)
    rules = constraint()
    for token in ids(text):
        assert not rules.take(STOP)
        assert rules.allowed()[token]
        assert rules.take(token)
    assert rules.allowed()[STOP]
    assert rules.take(STOP)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_what_is_drawn_among_the_allowed_tokens_fits_the_schema(seed):
    rng, rules, said = np.random.default_rng(seed), constraint(), []
    for _ in range(300):
        allowed = np.flatnonzero(rules.allowed())
        short = [token for token in allowed if token in CLOSING or token == STOP]
        token = int(rng.choice(short if short and rng.random() < 0.5 else allowed))
        assert rules.take(token)
        if token == STOP:
            Draft202012Validator(SCHEMA).validate(json.loads(tokenizer.decode(said)))
            return
        said.append(token)


@given(text=st.text(max_size=30))
@settings(max_examples=20, deadline=None)
def test_a_token_that_does_not_fit_changes_nothing(text):
    rules, good = constraint(), ids('{"order": "AB1"')
    assert all(map(rules.take, good))
    before = rules.allowed()
    for token in ids(text):
        if not before[token]:
            assert not rules.take(token)
    assert (rules.allowed() == before).all()


def test_a_reply_that_opens_a_tool_call_is_free_from_there_on():
    opening = ids("<tool_call>\n")
    rules = constraint(opening=opening)
    assert rules.allowed()[opening[0]]
    assert all(map(rules.take, opening))
    assert rules.free
    assert all(map(rules.take, [*ids("anything } at all"), STOP]))


def test_a_call_that_begins_as_json_does_stays_possible_while_both_fit():
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    opening = ids('{"name')
    call, other = (constraint(schema, opening) for _ in range(2))
    assert all(map(call.take, opening))
    assert call.free
    assert all(map(other.take, ids('{ "name": "x"}')))
    assert not other.free
    assert other.take(STOP)


@pytest.mark.skipif("<think>" not in tokenizer.get_vocab(), reason="no thoughts in this vocabulary")
@pytest.mark.parametrize("in_prompt", [False, True])
def test_a_thought_before_the_json_is_free_and_must_be_closed(in_prompt):
    opens, closes = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    rules = constraint(prompt=(5, opens) if in_prompt else (5,))
    thought = ([] if in_prompt else [opens]) + ids("Let me see: } {")
    assert all(map(rules.take, thought))
    assert not rules.take(STOP)
    assert not rules.allowed()[STOP]
    assert all(map(rules.take, [closes, *ids('\n\n{"order": "AB1", "items": [], "sum": null}'), STOP]))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "string", "pattern": "(?<=a)b"},
        {"type": "array", "uniqueItems": True},
        {"type": "string", "minLength": 9, "maxLength": 3},
    ],
)
def test_a_schema_that_no_grammar_can_keep_is_refused(schema):
    with pytest.raises(GrammarError, match="no grammar can be made") as error:
        constraint(schema)
    assert error.value.remedy


def test_a_tool_call_may_follow_a_thought():
    opens, closes = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    blank, call = ids("\n\n"), ids("<tool_call>\n")
    rules = constraint(opening=[opens, *blank, closes, *blank, *call])
    assert all(map(rules.take, [opens, *ids("Hm"), closes, *blank, *call]))
    assert rules.free


def test_space_without_end_is_no_layout():
    assert not all(map(constraint().take, ids('{\n\n"order"')))


def test_braces_in_a_schema_are_those_of_the_schema():
    rules = constraint({"const": "{0} {} %json {"})
    assert all(map(rules.take, [*ids('"{0} {} %json {"'), STOP]))
