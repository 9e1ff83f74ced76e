"""What a client may do to a conversation, and what changes it."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.serving.turn_cache import meaning, plain_message

NAMES = st.sampled_from(["look_up_order", "refund", "say"])
TEXT = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-4, 4).map(lambda x: round(x, 2)) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def conversations(draw) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": draw(TEXT)}, {"role": "user", "content": draw(TEXT)}]
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        calls = draw(st.lists(st.tuples(NAMES, st.dictionaries(TEXT, VALUES, max_size=3)), max_size=2))
        turn: dict[str, Any] = {"role": "assistant", "content": draw(TEXT), "reasoning_content": draw(TEXT)}
        messages.append(turn)
        if calls:
            turn["tool_calls"] = [
                {"id": f"c{number + at}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
                for at, (name, args) in enumerate(calls)
            ]
            messages += [
                {"role": "tool", "tool_call_id": f"c{number + at}", "content": draw(TEXT)} for at in range(len(calls))
            ]
            number += len(calls)
        else:
            messages.append({"role": "user", "content": draw(TEXT)})
    return messages


def arguments_rewritten(messages, rewrite):
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = rewrite(json.loads(call["function"]["arguments"]))


def compacted(messages):
    arguments_rewritten(messages, lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def reordered(messages):
    arguments_rewritten(messages, lambda value: json.dumps(dict(reversed(value.items())), indent=1))


def parsed(messages):
    arguments_rewritten(messages, lambda value: value)


def without_reasoning(messages):
    for message in messages:
        message.pop("reasoning_content", None)


def with_nulls(messages):
    for message in messages:
        message |= {"refusal": None, "audio": None, "annotations": None, "function_call": None, "name": None}
        message.setdefault("tool_calls", None)


def in_parts(messages):
    for message in messages:
        text = message["content"]
        message["content"] = [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}]


def renamed(messages):
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["id"] = "toolu_" + call["id"]
        if "tool_call_id" in message:
            message["tool_call_id"] = "toolu_" + message["tool_call_id"]


def emptied(messages):
    for message in messages:
        message["content"] = message["content"] or None


HARMLESS = [compacted, reordered, parsed, without_reasoning, with_nulls, in_parts, renamed, emptied]


def meant(messages):
    return meaning([plain_message(message) for message in messages])


@given(conversations(), st.lists(st.sampled_from(HARMLESS), max_size=4, unique=True))
def test_harmless_rewrites_leave_what_is_meant(messages, rewrites):
    rewritten = copy.deepcopy(messages)
    for rewrite in sorted(rewrites, key=HARMLESS.index):
        if not (rewrite is emptied and in_parts in rewrites):
            arguments = rewrite in (compacted, reordered, parsed) and parsed in rewrites and rewrite is not parsed
            if not arguments:
                rewrite(rewritten)
    before, after = meant(messages), meant(rewritten)
    assert after.key == before.key
    assert after.is_rewritten(before, [])


def places(messages):
    """Every leaf that means something, as the function that changes it."""
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
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": null}', "{}", False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"a": 2.5}', '{"a": 2}', False),
        ("{a: 1}", '{"a": 1}', False),
        ("{a: 1}", "{a:1}", False),
        ('{"a": 12345678901234567890}', '{"a": 12345678901234567000}', False),
    ],
)
def test_arguments_are_compared_as_json(one, other, same):
    def call(arguments):
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        }

    assert (meant([call(one)]).key == meant([call(other)]).key) is same


def test_reasoning_that_is_said_otherwise_is_a_change_and_that_is_left_out_is_none():
    turn = {"role": "assistant", "content": "Yes.", "reasoning_content": "Because."}
    sampled = meant([turn])
    assert meant([turn | {"reasoning_content": None}]).is_rewritten(sampled, [])
    assert meant([{"role": "assistant", "content": "Yes.", "reasoning": "Because."}]) == sampled
    assert not meant([turn | {"reasoning_content": "Why not."}]).is_rewritten(sampled, [])
