"""What a request's body may say, in each API: it is read as what it must be, or refused by what is wrong with it."""

import contextlib
import itertools
import json
import math
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gavel.trainer.serving import messages_api, responses_api
from gavel.trainer.serving.answers import ANSWERED, CLIENT_GONE, BadRequest, error_answer, object_of
from gavel.trainer.serving.chat_request import ChatRequest, read_chat_request
from tests.trainer.serving.served import completion_of, replies, texts

USER = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "refund"}}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "lamp"}


def json_values(*words: str) -> st.SearchStrategy[object]:
    some = st.sampled_from(words) | st.text(max_size=3) if words else st.text(max_size=3)
    plain = st.none() | st.booleans() | st.integers(-2, 2**40) | st.floats() | some
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(some, inner, max_size=4), max_leaves=8
    )


def chat(**fields: Any) -> ChatRequest:
    return read_chat_request({"model": "m", "messages": [USER], **fields})


def messages(**fields: Any) -> dict[str, Any]:
    return messages_api.chat_request({"model": "m", "messages": [USER], **fields})


def responses(**fields: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "Hello", **fields}
    return responses_api.chat_request(body, [], responses_api.input_items(body))


REFUSED = {
    chat: [
        *(({name: value}, name) for name in ("max_tokens", "seed", "n") for value in (True, 1.5, math.nan)),
        *(({"temperature": value}, "temperature") for value in ("hot", math.nan, 2.1)),
        *(({name: "true"}, name) for name in ("stream", "return_token_ids")),
        ({"stream_options": {"include_usage": "yes"}}, "include_usage"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["\ud800"]}, "surrogate"),
        *(({"logit_bias": bias}, "logit_bias") for bias in ({"cat": 5}, {"-1": 5}, {"5": 101})),
        ({"top_p": 1.5}, "top_p"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"model": None}, "model"),
        ({"wombat": "x" * 10_000}, "wombat"),
        ({"tools": [TOOL, {"type": "function", "function": {}}]}, "tools.1.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "'custom'"),
        ({"tools": [TOOL] * 1025}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "hello"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "tool", "content": None}]}, "messages.1"),
        ({"messages": [{"role": "assistant", "tool_calls": {"id": "c"}}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "refund"}}]}, "function_call"),
    ],
    messages: [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tool_choice": {"type": "some"}}, "some"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"system": {"type": "text"}}, "system"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "'tool'"),
        ({"messages": [{"role": "user"}]}, "messages.0.user.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
    ],
    responses: [
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "log-probs"),
        ({"store": "yes"}, "store"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"input": 5}, "input is 5"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"type": "message", "role": "tool", "content": "hi"}]}, "'tool'"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input.0.function_call.name"),
        ({"input": [OUTPUT | {"output": {"a": 1}}]}, "input.0.function_call_output.output"),
    ],
}


@pytest.mark.parametrize(
    ("read", "fields", "named"),
    [(read, *case) for read, cases in REFUSED.items() for case in cases],
    ids=lambda each: str(each)[:60],
)
def test_what_cannot_be_served_is_refused_by_name(read, fields, named):
    with pytest.raises(BadRequest) as refused:
        read(**fields)
    assert named in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused_with_the_range():
    body = {"model": "m", "messages": [USER], "logit_bias": {"511": 5, "512": -100}}
    with pytest.raises(BadRequest) as refused:
        read_chat_request(body, 512)
    assert "0 to 511" in refused.value.remedy
    assert read_chat_request(body, 513).shaping == read_chat_request(body).shaping


SCHEMA, LOOK_UP, FUNCTION, FORM = {"type": "object"}, {"name": "look_up"}, {"type": "function"}, {"type": "json_schema"}
STRICT = {"name": "n", "schema": SCHEMA, "strict": True}
LOOKING_UP = FUNCTION | {"function": LOOK_UP | {"parameters": SCHEMA}}
DESCRIBED = FUNCTION | LOOK_UP | {"parameters": SCHEMA, "strict": True, "description": None}


@pytest.mark.parametrize(
    ("read", "fields", "expected"),
    [
        (messages, {"metadata": {"user_id": "me"}, "thinking": {"type": "enabled"}, "service_tier": "auto"}, {}),
        (messages, {"max_tokens": 5, "stop_sequences": ["\n"]}, {"max_tokens": 5, "stop": ["\n"]}),
        (messages, {"tools": [{**LOOK_UP, "input_schema": SCHEMA, "cache_control": {}}]}, {"tools": [LOOKING_UP]}),
        (
            messages,
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            messages,
            {"output_config": {"format": FORM | {"schema": SCHEMA}, "effort": "low"}},
            {"response_format": FORM | {"json_schema": {"name": "reply", "schema": SCHEMA}}},
        ),
        (responses, {"metadata": {"a": "b"}, "store": False, "reasoning": {"effort": "low"}, "include": []}, {}),
        (responses, {"temperature": 0.5, "seed": 4, "unheard_of": 1}, {"temperature": 0.5, "seed": 4, "unheard_of": 1}),
        (responses, {"text": {"format": FORM | STRICT}}, {"response_format": FORM | {"json_schema": STRICT}}),
        (responses, {"tool_choice": FUNCTION | LOOK_UP}, {"tool_choice": FUNCTION | {"function": LOOK_UP}}),
        (responses, {"tools": [DESCRIBED]}, {"tools": [LOOKING_UP]}),
    ],
)
def test_what_the_apis_call_otherwise_is_translated_and_the_rest_passes(read, fields, expected):
    assert read(**fields) == {"model": "m", "messages": [USER], **expected}


@given(replies(st.dictionaries(texts, texts, max_size=3).map(lambda given: json.dumps(given, ensure_ascii=False))))
def test_every_reply_comes_back_from_blocks_as_it_was_sampled(reply):
    blocks = json.loads(json.dumps(messages_api.message_object(completion_of(reply))["content"]))
    assert messages(messages=[USER, {"role": "assistant", "content": blocks}])["messages"] == [USER, reply]


def as_items(message: dict) -> list[dict]:
    match message["role"]:
        case "assistant":
            return responses_api.response_object({}, completion_of(message))["output"]
        case "tool":
            return [OUTPUT | {"call_id": message["tool_call_id"], "output": message["content"]}]
        case _:
            return [message]


others = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}),
)


@given(st.lists(st.tuples(replies(), others), max_size=4))
def test_every_conversation_comes_back_from_items_as_it_was_sampled(turns):
    conversation = [message for turn in turns for message in turn]
    items = [item for message in conversation for item in as_items(message)]
    assert responses_api.chat_messages(json.loads(json.dumps(items))) == conversation


WORDS = ("type", "text", "role", "content", "tool_use", "tool_result", "function_call", "reasoning", "call_id", "user")


@given(json_values(*WORDS))
def test_any_value_of_any_field_is_read_or_refused(value):
    fields = {
        chat: (*ChatRequest.model_fields, "wombat"),
        messages: ("messages", "system", "tools", "tool_choice", "output_config", "output_format", "stop_sequences"),
        responses: ("input", "instructions", "tools", "tool_choice", "text", "include", "max_output_tokens"),
    }
    shapes = value, [value], [{"role": "user", "content": [value]}], [{"type": "reasoning", "summary": value}]
    for read, names in fields.items():
        for name, shape in itertools.product(names, shapes):
            with contextlib.suppress(BadRequest):
                read(**{name: shape})
    for name in ("role", "content", "tool_calls", "tool_call_id", "refusal", "reasoning_content"):
        with contextlib.suppress(BadRequest):
            chat(messages=[{"role": "assistant", name: value}])


@pytest.mark.parametrize(
    ("piece", "pieces", "status", "reason"),
    [
        *(
            ({"type": "http.request", "body": body, "more_body": False}, 1, 400, reason)
            for body, reason in [
                (b"{oops", "no JSON"),
                (b'{"seed": ' + b"9" * 5000 + b"}", "no JSON"),
                (b'{"model": "\xff"}', "UTF-8"),
                (b"[]", "no JSON object"),
                (b"[" * 100_000, "nested"),
            ]
        ),
        ({"type": "http.request", "body": b" " * (1 << 20), "more_body": True}, 33, 413, ""),
        ({"type": "http.disconnect"}, 1, CLIENT_GONE, ""),
    ],
    ids=lambda each: str(each)[:60],
)
async def test_a_body_that_is_no_json_object_is_refused_and_read_up_to_a_limit(piece, pieces, status, reason):
    receive = AsyncMock(return_value=piece)
    with pytest.raises(ANSWERED) as caught:
        await object_of(Request({"type": "http", "method": "POST", "headers": []}, receive))
    found, answer = error_answer(caught.value)
    assert (found, receive.await_count) == (status, pieces)
    assert reason in answer["error"]["message"]


@given(st.floats(0, 2))
def test_a_temperature_is_the_one_that_log_probs_can_be_divided_by(value):
    assert chat(temperature=value).temperature == (value if value >= 1e-5 else 0)
