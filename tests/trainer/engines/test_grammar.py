"""What a constraint allows is JSON of the schema, a tool call or a thought; tokens are those of the embedded policy."""

import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer

from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.engines.grammar import Grammar, GrammarError, Grammars
from gavel.trainer.engines.protocol import SamplingRequest, Shaping
from gavel.trainer.engines.transformers import Draw, draw_tokens

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


def test_a_call_that_begins_as_json_does_stays_possible_while_both_fit():
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    opening = ids('{"name')
    call, other = (constraint(schema, opening) for _ in range(2))
    assert all(map(call.take, [*opening, *ids(" anything } at all"), STOP]))
    assert all(map(other.take, ids('{ "name": "x"}')))
    assert not other.take(ids("{")[0])
    assert other.take(STOP)


@pytest.mark.skipif("<think>" not in tokenizer.get_vocab(), reason="no thoughts in this vocabulary")
@pytest.mark.parametrize("in_prompt", [False, True])
def test_a_thought_before_the_json_is_free_and_must_be_closed(in_prompt):
    opens, closes = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    rules = constraint(prompt=(5, opens) if in_prompt else (5,))
    assert not rules.allowed()[opens], "the policy alone opens a thought"
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


def test_a_reply_is_free_behind_a_tool_call_which_may_follow_a_thought_and_space_without_end_is_no_layout():
    opens, closes = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    blank, call = ids("\n\n"), ids("<tool_call>\n")
    rules = constraint(opening=call)
    assert rules.allowed()[call[0]]
    assert all(map(rules.take, [*call, *ids("anything } at all"), STOP]))
    rules = constraint(opening=[opens, *blank, closes, *blank, *call])
    assert all(map(rules.take, [opens, *ids("Hm"), closes, *blank, *call, *ids("} {"), STOP]))
    assert not all(map(constraint().take, ids('{\n\n"order"')))
    rules = constraint({"const": "{0} {} %json {"})
    assert all(map(rules.take, [*ids('"{0} {} %json {"'), STOP])), "braces are those of the schema"


LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0])


class Only:
    """A constraint that allows some tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.taken: list[int] = []

    def take(self, token: int) -> bool:
        if token in self.tokens:
            self.taken.append(token)
        return token in self.tokens

    def allowed(self) -> np.ndarray:
        if not self.tokens:
            raise GrammarError("nothing fits")
        return np.isin(np.arange(len(LOGITS)), self.tokens)


@dataclass
class Row:
    request: SamplingRequest
    constraint: Only | None = None
    token_ids: list[int] = field(default_factory=list)


def row(seed: int = 0, *, only: tuple[int, ...] | None = None, temperature: float = 1.0, **asked) -> Row:
    request = SamplingRequest([1], frozenset(), 8, temperature, seed, **asked)
    return Row(request, None if only is None else Only(*only))


def draw(*rows: Row) -> list[Draw]:
    return draw_tokens(LOGITS.repeat(len(rows), 1), rows)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_under_a_grammar_are_those_of_the_policy_among_those_that_fit(temperature):
    rows = [row(seed, only=(1, 3, 4), temperature=temperature) for seed in range(1500)]
    drawn = draw(*rows)
    shares = Counter(each.token for each in drawn)
    masked = torch.log_softmax((LOGITS / temperature)[[1, 3, 4]], -1)
    policy = torch.log_softmax(LOGITS / temperature, -1)
    for token, value in zip((1, 3, 4), masked.tolist(), strict=True):
        assert shares[token] / len(rows) == pytest.approx(np.exp(value), abs=0.05)
        for each in drawn:
            if each.token == token:
                assert each.logprob == pytest.approx(value if each.again else float(policy[token]), abs=1e-5)
    assert sum(each.again for each in drawn) / len(rows) == pytest.approx(float(policy[[0, 2]].exp().sum()), abs=0.05)
    assert [each.constraint.taken for each in rows] == [[each.token] for each in drawn]


def test_a_tail_that_was_cut_off_comes_back_and_a_grammar_that_leaves_nothing_fails_its_own_row_alone():
    drawn, stuck, other = draw(row(only=(3,), shaping=Shaping(top_k=1)), row(only=()), row(3))
    assert (drawn.token, drawn.again, drawn.logprob) == (3, True, 0.0)
    assert isinstance(stuck, GrammarError)
    assert isinstance(other, Draw)


@pytest.mark.parametrize(
    ("shaping", "kept"),
    [
        (Shaping(), [0, 1, 2, 3]),
        (Shaping(top_p=0.0), [0]),
        (Shaping(top_p=0.5), [0]),
        (Shaping(top_p=0.51), [0, 1]),
        (Shaping(top_p=0.79), [0, 1]),
        (Shaping(top_k=3), [0, 1, 2]),
        (Shaping(min_p=0.31), [0, 1]),
    ],
)
def test_the_tail_is_cut_where_openai_and_vllm_cut_it(shaping, kept):
    logprobs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert torch.isfinite(shaping.logprobs(logprobs)).nonzero()[:, 0].tolist() == kept


def test_penalties_count_what_was_said_and_biases_add():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0])
    shaping = Shaping(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 5.0, 99: 1.0})
    assert shaping.logits(logits, [2], [0, 0, 1]).tolist() == [1.0, -2.75, 1.0, 5.0]
    repeated = Shaping(repetition_penalty=2.0)
    assert repeated.logits(logits, [0], [1]).tolist() == [1.0, -4.0, 1.0, 0.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.0]
