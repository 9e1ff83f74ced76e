"""A conversation goes on from the very tokens that were sampled, whatever a client does to its messages."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import ParsedResponse, ParsedToolCall

from gavel.trainer.engines.protocol import Sampled
from gavel.trainer.policy.chat_format import TOOLS as WORD_TOOLS
from gavel.trainer.policy.chat_format import HermesCalls
from gavel.trainer.serving.chat_objects import is_call, logprobs_object, reply_message
from gavel.trainer.serving.turn_cache import TurnCache, meaning, plain_message
from tests.trainer.conftest import OPENING, TOOLS
from tests.trainer.policy.test_chat_formats import HERMES, renderer

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up_order", "arguments": '{"order_id": "7890"}'}}
REPLY = {"role": "assistant", "content": "", "tool_calls": [CALL]}
QUESTION = {"role": "user", "content": "And order 1234?"}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": '{"item": "lamp"}'}


@pytest.fixture
def turns(policy):
    return TurnCache(policy.renderer, policy.decode)


@pytest.fixture
def call_tokens(policy):
    text = '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call>'
    ids = [token for character in text for token in policy.tokenizer.encode(character, add_special_tokens=False)]
    return [*ids, policy.renderer.get_stop_token_ids()[0]]


def test_a_turn_that_was_cut_goes_on_from_its_own_tokens_with_the_end_that_it_lacks(turns, policy, monkeypatch):
    prompt = turns.prompt(OPENING, TOOLS).token_ids
    cut = [token for letter in "Let me s" for token in policy.tokenizer.encode(letter, add_special_tokens=False)]
    reply = {"role": "assistant", "content": policy.decode(cut)}
    turns.sampled(OPENING, TOOLS, reply, prompt, cut)
    messages = [*OPENING, reply, QUESTION]
    monkeypatch.setattr(turns._renderer, "bridge_to_next_turn", lambda *_, **__: None)  # it proves no bridge
    found = turns.prompt(messages, TOOLS)
    rendered = list(policy.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
    assert found.continues
    assert found.token_ids[: len(prompt) + len(cut)] == prompt + cut
    assert found.token_ids[len(prompt) + len(cut)] == policy.renderer.get_stop_token_ids()[0]
    assert found.token_ids != rendered
    assert policy.decode(found.token_ids) == policy.decode(rendered)


@pytest.mark.parametrize("cut", [False, True])
def test_what_the_template_shows_otherwise_is_rendered_as_it_shows_it(turns, policy, call_tokens, cut):
    thought = policy.tokenizer.encode("<think>\nWell.\n</think>\n\n", add_special_tokens=False)
    prompt = turns.prompt(OPENING, TOOLS).token_ids
    reply = REPLY | {"reasoning_content": "Well."}
    turns.sampled(OPENING, TOOLS, reply, prompt, [*thought, *call_tokens][: -1 if cut else None])
    messages = [*OPENING, reply, ANSWER, QUESTION]
    found = turns.prompt(messages, TOOLS)
    assert found.continues
    assert found.token_ids == list(policy.renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True))


def test_a_conversation_that_ends_with_the_sampled_turn_goes_on_after_it(turns, policy, call_tokens):
    prompt = turns.prompt(OPENING, TOOLS).token_ids
    turns.sampled(OPENING, TOOLS, REPLY, prompt, call_tokens)
    found = turns.prompt([*OPENING, REPLY], TOOLS)
    assert found.continues
    assert found.token_ids[: len(prompt) + len(call_tokens)] == prompt + call_tokens
    assert policy.decode(found.token_ids[len(prompt) + len(call_tokens) :]).strip() == "<|im_start|>assistant"
    assert not turns.prompt([*OPENING, REPLY | {"content": "Well."}], TOOLS).continues


NAMES = st.sampled_from(["look_up_order", "refund", "say"])
SHORT_TEXT = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-4, 4).map(lambda x: round(x, 2)) | SHORT_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT_TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def conversations(draw) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": draw(SHORT_TEXT)}, {"role": "user", "content": draw(SHORT_TEXT)}]
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        calls = draw(st.lists(st.tuples(NAMES, st.dictionaries(SHORT_TEXT, VALUES, max_size=3)), max_size=2))
        turn: dict[str, Any] = {"role": "assistant", "content": draw(SHORT_TEXT), "reasoning_content": draw(SHORT_TEXT)}
        messages.append(turn)
        for name, arguments in calls:
            number += 1
            function = {"name": name, "arguments": json.dumps(arguments)}
            turn.setdefault("tool_calls", []).append({"id": f"c{number}", "type": "function", "function": function})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": draw(SHORT_TEXT)})
        if not calls:
            messages.append({"role": "user", "content": draw(SHORT_TEXT)})
    return messages


def called(message):
    return [call["function"] for call in message.get("tool_calls", ())]


def compacted(message):
    for function in called(message):
        arguments = dict(reversed(json.loads(function["arguments"]).items()))
        function["arguments"] = json.dumps(arguments, separators=(",", ":"))


def parsed(message):
    for function in called(message):
        function["arguments"] = json.loads(function["arguments"])


def without_reasoning(message):
    message.pop("reasoning_content", None)


def otherwise_named(message):
    if "reasoning_content" in message:
        message["reasoning"] = message.pop("reasoning_content")


def with_nulls(message):
    message |= {"refusal": None, "audio": None, "name": None, "content": message["content"] or None}
    message.setdefault("reasoning_content", None)


def in_parts(message):
    text = message["content"] or ""
    message["content"] = [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}]


def renamed(message):
    for call in message.get("tool_calls", ()):
        call["id"] = "toolu_" + call["id"]
    if "tool_call_id" in message:
        message["tool_call_id"] = "toolu_" + message["tool_call_id"]


HARMLESS = [compacted, parsed, without_reasoning, with_nulls, otherwise_named, in_parts, renamed]


def meant(messages):
    return meaning([plain_message(message) for message in messages])


@given(conversations(), st.lists(st.sampled_from(HARMLESS), max_size=4, unique=True))
def test_harmless_rewrites_leave_what_is_meant(messages, rewrites):
    rewritten = copy.deepcopy(messages)
    for rewrite in sorted(rewrites, key=HARMLESS.index):
        for message in rewritten:
            rewrite(message)
    before, after = meant(messages), meant(rewritten)
    assert after.key == before.key
    assert after.is_rewritten(before, [])


def places(messages):
    for at, message in enumerate(messages):
        yield lambda m, at=at: m[at].update(content=m[at]["content"] + "!")
        yield lambda m, at=at: m[at].update(role="user" if m[at]["role"] != "user" else "system")
        yield lambda m, at=at: m.insert(at, {"role": "user", "content": ""})
        if len(messages) > 1:
            yield lambda m, at=at: m.pop(at)
        if message.get("reasoning_content"):
            yield lambda m, at=at: m[at].update(reasoning_content=m[at]["reasoning_content"] + "!")
        for number in range(len(message.get("tool_calls", ()))):
            yield lambda m, at=at, n=number: m[at]["tool_calls"][n]["function"].update(name="other")
            yield lambda m, at=at, n=number: m[at]["tool_calls"][n]["function"].update(arguments='{"other": 1}')
            yield lambda m, at=at, n=number: m[at]["tool_calls"].pop(n)
        if "tool_call_id" in message:
            yield lambda m, at=at: m[at].update(tool_call_id="another")


@given(conversations(), st.data())
def test_any_change_of_what_is_said_is_seen(messages, data):
    edit = data.draw(st.sampled_from(list(places(messages))))
    edited = copy.deepcopy(messages)
    edit(edited)
    before, after = meant(messages), meant(edited)
    assert after.key != before.key or not after.is_rewritten(before, [])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": 2.0}', '{"b":2,"a":1}', True),
        ('{"a": "\\u00e9"}', '{"a": "é"}', True),
        ("", "{}", True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": null}', "{}", False),
        ("{a: 1}", "{a:1}", False),
        ('{"a": 12345678901234567890}', '{"a": 12345678901234567000}', False),
    ],
)
def test_arguments_are_compared_as_json(one, other, same):
    def key(arguments):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return meant([{"role": "assistant", "content": "", "tool_calls": [call]}]).key

    assert (key(one) == key(other)) is same


ASKED: list[Any] = [{"role": "user", "content": "Where is it?"}]
OPENED = '<tool_call>\n{"name": "look_up", "arguments": {"word": 10\n'
SAID = [
    OPENED,
    "I am sorry.\n\n<tool_call>\nrefund</tool_call>",
    '<tool_call>{"arguments": {}}</tool_call>\n<tool_call>[]</tool_call>',
    f"Well. {OPENED}</tool_call>  \n I am",
]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("form", ["exact", "template", "tags are text"])
def test_a_conversation_goes_on_from_a_call_that_cannot_be_read(policy: Any, form: str, said: str) -> None:
    found: Any = policy.renderer if form == "exact" else renderer(HERMES)
    if form == "tags are text":
        found._tool_parser = HermesCalls(found._tokenizer)
    prompt = found.render_ids(ASKED, tools=WORD_TOOLS, add_generation_prompt=True)
    sampled = [*policy.tokenizer.encode(said), found.get_stop_token_ids()[0]]
    parsed = found.parse_response(sampled, prompt_ids=prompt)
    reply = reply_message(parsed, sampled[:-1], policy.decode)
    assert reply == {"role": "assistant", "content": said}
    turns = TurnCache(found, policy.decode)
    turns.sampled(ASKED, WORD_TOOLS, reply, prompt, sampled)
    following = turns.prompt([*ASKED, reply, {"role": "user", "content": "And?"}], WORD_TOOLS)
    assert following.continues
    assert following.token_ids[: len(prompt) + len(sampled)] == [*prompt, *sampled]


PIECES = [b"caf", "é".encode()[:1], "é".encode()[1:], "🦜".encode()]


def decode_pieces(token_ids: Sequence[int]) -> str:
    return b"".join(PIECES[each] for each in token_ids).decode(errors="replace")


@pytest.mark.parametrize(("token", "expected"), [(0, list(b"caf")), (1, None), (2, None), (3, list("🦜".encode()))])
def test_the_bytes_of_a_part_of_a_character_are_null_rather_than_wrong(token: int, expected: list[int] | None) -> None:
    sampled = Sampled([token], [-0.5], "stop", 0)
    (shown,) = logprobs_object(sampled, decode_pieces)["content"]
    assert shown["bytes"] == expected


@pytest.mark.parametrize(
    ("name", "arguments", "readable"),
    [
        ("refund", {"order_id": "1"}, True),
        ("refund", '{"order_id": "1"}', True),
        ("refund", None, False),
        ("refund", "order 1", False),
        ("refund", {"order_id": "\ud800"}, True),
        (5, {}, False),
        ("refund", {"amount": [float("inf")]}, False),
    ],
)
def test_a_call_that_no_client_could_read_stays_in_the_text(name: Any, arguments: Any, readable: bool) -> None:
    call = ParsedToolCall(raw="<as said>", name=name, arguments=arguments)
    assert is_call(call) == readable
    reply = reply_message(ParsedResponse(content="Well.", tool_calls=[call]), [], decode_pieces)
    assert (reply["content"], "tool_calls" in reply) == (("Well.", True) if readable else ("Well.\n<as said>", False))


def test_text_that_the_thought_has_too_begins_behind_the_thought() -> None:
    call = ParsedToolCall(raw="<call", name=None, arguments=None)
    parsed = ParsedResponse(content="Well.", reasoning_content="Well.", tool_calls=[call])
    reply = reply_message(parsed, [], lambda _: "<think>Well.</think>Well. <call")
    assert (reply["content"], reply["reasoning_content"]) == ("Well. <call", "Well.")
