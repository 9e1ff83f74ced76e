"""What a request of the Messages API is as a chat request."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.serving.errors import BadRequest
from gavel.trainer.serving.messages_api import chat_request, content_blocks
from tests.trainer.serving.bodies import json_values
from tests.trainer.serving.chunked import replies, texts

USER = {"role": "user", "content": "Hello"}
USE = {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"id": "7"}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"id": "7"}'}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "lamp"}
TEXT = {"type": "text", "text": "Hello"}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "lamp"}


def translated(**fields) -> dict:
    return chat_request({"model": "desk", "messages": [USER], **fields})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (USER, [USER]),
        ({"role": "user", "content": [TEXT | {"cache_control": {"type": "ephemeral"}}]}, [USER]),
        ({"role": "user", "content": [RESULT]}, [ANSWER]),
        (
            {"role": "user", "content": [RESULT, RESULT | {"tool_use_id": "c2"}]},
            [ANSWER, ANSWER | {"tool_call_id": "c2"}],
        ),
        ({"role": "user", "content": [RESULT | {"content": [{"type": "text", "text": "lamp"}]}, TEXT]}, [ANSWER, USER]),
        ({"role": "user", "content": [TEXT, RESULT]}, [USER, ANSWER]),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}, [ANSWER | {"content": ""}]),
        ({"role": "assistant", "content": "Hello"}, [{"role": "assistant", "content": "Hello"}]),
        ({"role": "assistant", "content": []}, [{"role": "assistant", "content": ""}]),
        (
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, TEXT, USE],
            },
            [{"role": "assistant", "content": "Hello", "reasoning_content": "Hm.", "tool_calls": [CALLED]}],
        ),
    ],
)
def test_blocks_become_messages(message, expected):
    assert translated(messages=[message])["messages"] == expected


@given(replies(st.dictionaries(texts, texts, max_size=3).map(lambda given: json.dumps(given, ensure_ascii=False))))
def test_every_reply_comes_back_as_it_was_sampled(reply):
    blocks = json.loads(json.dumps(content_blocks(reply)))
    assert translated(messages=[USER, {"role": "assistant", "content": blocks}])["messages"] == [USER, reply]


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]])
def test_the_system_prompt_is_the_first_message(system):
    assert translated(system=system)["messages"] == [{"role": "system", "content": "Be brief."}, USER]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"metadata": {"user_id": "me"}, "thinking": {"type": "enabled"}, "service_tier": "auto"}, {}),
        ({"temperature": 0.5, "top_k": 3, "unheard_of": 1}, {"temperature": 0.5, "top_k": 3, "unheard_of": 1}),
        ({"max_tokens": 5}, {"max_completion_tokens": 5}),
        ({"stop_sequences": ["\n"]}, {"stop": ["\n"]}),
        (
            {
                "tools": [
                    {"name": "look_up", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
                ]
            },
            {"tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]},
        ),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
        (
            {"tool_choice": {"type": "tool", "name": "look_up"}},
            {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "schema": {"type": "object"}},
                }
            },
        ),
    ],
)
def test_fields_are_renamed_or_pass(given, expected):
    assert translated(**given) == {"model": "desk", "messages": [USER], **expected}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tool_choice": {"type": "some"}}, "some"),
        ({"metadata": "me"}, "metadata='me' is not an object"),
        ({"thinking": True}, "thinking=True is not an object"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"messages": None}, "there are no messages"),
        ({"messages": "hi"}, "messages is text"),
        ({"messages": [None]}, "message 0 is null"),
        ({"messages": [{"content": "hi"}]}, "message 0 has no role"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "message 0 has the role 'tool'"),
        ({"messages": [{"role": "user"}]}, "message 0 has no content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "the content of message 0, part 0 is text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "the text of message 0 is a number",
        ),
        ({"system": {"type": "text"}}, "the content of system is an object"),
        ({"stop_sequences": "stop"}, "stop_sequences is text"),
        ({"max_tokens": 0}, "max_tokens=0 leaves nothing to sample"),
        ({"tools": "refund"}, "tools is text"),
        ({"tools": [{"input_schema": {}}]}, "tool 0 has no name"),
        ({"tool_choice": "any"}, "tool_choice is text"),
        ({"thread": {"type": "create"}}, "thread is not supported here"),
        ({"messages": [{"role": "user", "content": [RESULT | {"content": [{"type": "image"}]}]}]}, "image"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(given, named):
    with pytest.raises(BadRequest, match=named):
        translated(**given)


@given(
    json_values("type", "text", "role", "content", "tool_use", "tool_result", "tool_use_id", "name", "input", "user"),
    st.sampled_from(["messages", "system", "tools", "tool_choice", "output_config", "output_format", "stop_sequences"]),
)
def test_any_value_is_translated_or_refused(value, name):
    for given_value in (
        value,
        [value],
        [{"role": "assistant", "content": value}],
        [{"role": "user", "content": [value]}],
    ):
        with contextlib.suppress(BadRequest):
            translated(**{name: given_value})
