"""What a chat completion's body may say: each wrong type is a 400 with a reason, and nothing is guessed."""

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.serving.chat_request import _INERT, _KNOWN, _SHAPING, ChatRequest, read_chat_request
from gavel.trainer.serving.errors import BadRequest
from tests.trainer.serving.bodies import json_values

TOOL = {"type": "function", "function": {"name": "refund"}}


def read(**settings: Any) -> ChatRequest:
    return read_chat_request({"model": "m", "messages": [{"role": "user", "content": "hello"}], **settings})


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "seed", "n"])
@pytest.mark.parametrize("value", [True, 1.5, "3", [3], {}, math.nan, math.inf])
def test_what_is_no_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"{name}=.* is no whole number"):
        read(**{name: value})


@pytest.mark.parametrize("value", [True, "hot", [1], math.nan, math.inf, -0.1, 2.1])
def test_a_temperature_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(BadRequest, match=r"temperature=.* is not between 0 and 2"):
        read(temperature=value)


@given(st.floats(0, 2))
def test_a_temperature_is_the_one_that_log_probs_can_be_divided_by(value: float) -> None:
    temperature = read(temperature=value).temperature
    assert temperature == (value if value >= 1e-5 else 0)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    asked = read(max_tokens=3.0, seed=5.0)
    assert (asked.max_tokens, asked.seed) == (3, 5)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ("refund", "tools is no list of tools"),
        ({"type": "function"}, "tools is no list of tools"),
        (["refund"], "tool 0 has no name"),
        ([TOOL, {"type": "function", "function": {}}], "tool 1 has no name"),
        ([{"type": "function", "function": {"name": ""}}], "tool 0 has no name"),
        ([{"type": "function", "function": {"name": 5}}], "tool 0 has no name"),
        ([{"type": "custom", "custom": {"name": "x"}}], "tool 0 is of type 'custom'"),
        ([TOOL, {"type": "web_search"}], "tool 1 is of type 'web_search'"),
    ],
)
def test_tools_that_the_policy_would_not_be_shown_are_refused(tools: object, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        read(tools=tools)


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_none(tools: object) -> None:
    assert read(tools=tools).tools is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("store", 5, "store=5 is not true or false"),
        ("store", "true", "store='true' is not true or false"),
        ("metadata", "x", "metadata='x' is not an object"),
        ("metadata", [], r"metadata=\[\] is not an object"),
        ("user", [], r"user=\[\] is not text"),
        ("user", 7, "user=7 is not text"),
        ("service_tier", {}, "service_tier={} is not text"),
        ("prediction", "x", "prediction='x' is not an object"),
    ],
)
def test_a_parameter_without_effect_has_its_type_all_the_same(name: str, value: object, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as refused:
        read(**{name: value})
    assert refused.value.remedy == f"Correct it, or leave {name} out."


def test_a_parameter_without_effect_may_be_null_and_hold_what_it_likes() -> None:
    plain = read()
    assert read(**dict.fromkeys(_INERT)) == plain
    assert read(metadata={"run": 3, "tags": ["a"]}, user="", service_tier="unheard of", verbosity="") == plain


@pytest.mark.parametrize("bias", [{"cat": 5}, {"5": "much"}, {"5": None}, [5], "5"])
def test_a_bias_without_numbers_is_refused(bias: object) -> None:
    with pytest.raises(BadRequest, match="gives no numbers to token ids"):
        read(logit_bias=bias)


def test_a_bias_of_no_token_is_refused() -> None:
    with pytest.raises(BadRequest, match="names a token below 0"):
        read(logit_bias={"-1": 5})


def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused_with_the_range() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "logit_bias": {"511": 5, "512": -100}}
    with pytest.raises(BadRequest, match="names the token 512, which the model does not have") as refused:
        read_chat_request(body, 512)
    assert refused.value.remedy == "Its tokens are 0 to 511."
    assert read_chat_request(body, 513).shaping == read_chat_request(body).shaping


@pytest.mark.parametrize("name", ["top_k", "top_logprobs"])
def test_a_count_is_a_whole_number(name: str) -> None:
    assert read(**{name: 3.0}) == read(**{name: 3})
    with pytest.raises(BadRequest, match=f"{name}=1.5 is no whole number"):
        read(**{name: 1.5})


@pytest.mark.parametrize("name", ["stream", "logprobs", "parallel_tool_calls", "compact_logprobs", "return_token_ids"])
@pytest.mark.parametrize("value", ["false", "true", 1, 0, [], {}])
def test_what_is_neither_true_nor_false_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"{name}=.* is neither true nor false"):
        read(**{name: value})


@pytest.mark.parametrize("options", [5, "x", [], {"include_usage": "yes"}])
def test_options_of_a_stream_are_an_object_of_switches(options: object) -> None:
    with pytest.raises(BadRequest, match=r"stream_options|include_usage"):
        read(stream_options=options)


def test_no_other_modality_than_text_is_promised() -> None:
    assert read(modalities=["text"])
    with pytest.raises(BadRequest, match="text only"):
        read(modalities=["text", "audio"])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "there are no messages"),
        ([], "there are no messages"),
        ("hello", "messages is no list"),
        ({"role": "user"}, "messages is no list"),
        (["hello"], "message 0 is no message"),
        ([None], "message 0 is no message"),
        ([{"content": "hello"}], "message 0 is no message"),
        ([{"role": "user", "content": ["hello"]}], "content that is no text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "content that is no text"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "content that is no text"),
        ([{"role": "user", "content": 5}], "content that is no text"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": "hi"}, {"role": "tool", "content": None}], "message 1 has no content"),
        ([{"role": "assistant", "tool_calls": {"id": "c"}}], "the tool_calls of message 0 are no list"),
        ([{"role": "assistant", "content": "", "reasoning_content": {"a": 1}}], "the reasoning_content of message 0"),
        ([{"role": "tool", "content": "5", "tool_call_id": 5}], "the tool_call_id of message 0 is no text"),
        ([{"role": "assistant", "function_call": {"name": "refund", "arguments": "{}"}}], "Give tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": 5, "arguments": "{}"}}]}], "a tool call without"),
        ([{"role": "assistant", "tool_calls": [None]}], "a tool call without"),
    ],
)
def test_messages_that_the_policy_would_not_be_shown_are_refused(messages: object, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        read_chat_request({"model": "m", "messages": messages})


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([{"type": "function", "function": {"name": "refund", "parameters": "order_id"}}], "the parameters of tool 0"),
        ([{"type": "function", "function": {"name": "refund", "description": 5}}], "the description of tool 0"),
        ([{"type": "function", "function": {"name": "refund"}}] * 1025, "there are 1025 tools, more than 1024"),
    ],
)
def test_tools_that_the_policy_could_not_read_are_refused(tools: object, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        read_chat_request({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools})


def test_a_refusal_repeats_the_beginning_of_a_long_value() -> None:
    with pytest.raises(BadRequest, match="wombat") as error:
        read_chat_request({"model": "m", "messages": [{"role": "user", "content": "hi"}], "wombat": "x" * 10_000})
    assert len(str(error.value)) < 300


@given(json_values())
def test_any_value_of_any_field_is_read_or_refused(value: object) -> None:
    for name in (*_KNOWN, *_SHAPING, "wombat"):
        with contextlib.suppress(BadRequest):
            read_chat_request({"model": "m", "messages": [{"role": "user", "content": "hi"}], name: value})


@given(
    json_values(), st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "refusal", "reasoning_content"])
)
def test_any_message_is_read_or_refused(value: object, name: str) -> None:
    for message in (value, {"role": "user", "content": "hi", name: value}, {"role": "assistant", name: value}):
        with contextlib.suppress(BadRequest):
            read_chat_request({"model": "m", "messages": [message]})


def test_a_request_names_its_model() -> None:
    with pytest.raises(BadRequest, match="names no model"):
        read_chat_request({"messages": [{"role": "user", "content": "hello"}]})


@pytest.mark.parametrize("stop", [5, {"a": 1}, [""], [None], ["\ud800"]])
def test_what_ends_a_turn_is_text(stop: object) -> None:
    with pytest.raises(BadRequest, match=r"is no list of strings|half a surrogate pair"):
        read(stop=stop)
