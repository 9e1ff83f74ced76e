"""What a request of the Responses API is as a chat request."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.serving.errors import BadRequest
from gavel.trainer.serving.responses_api import chat_messages, chat_request, input_items, output_items
from tests.trainer.serving.bodies import json_values
from tests.trainer.serving.chunked import replies, texts

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look_up", "arguments": '{"id": "7"}'}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"id": "7"}'}}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Well.", "annotations": []}],
}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "lamp"}
USER = {"role": "user", "content": "Hello"}


def translated(**fields) -> dict:
    body = {"model": "desk", "input": "Hello", **fields}
    return chat_request(body, [], input_items(body))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([USER], [USER]),
        ([{"type": "message", **USER}], [USER]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "text", "text": "lo"}]}],
            [USER],
        ),
        ([{"role": "developer", "content": "Be brief."}], [{"role": "developer", "content": "Be brief."}]),
        ([SAID], [{"role": "assistant", "content": "Well."}]),
        ([CALL], [{"role": "assistant", "content": "", "tool_calls": [CALLED]}]),
        ([SAID, CALL], [{"role": "assistant", "content": "Well.", "tool_calls": [CALLED]}]),
        (
            [THOUGHT, SAID, CALL, CALL | {"call_id": "c2"}],
            [
                {
                    "role": "assistant",
                    "content": "Well.",
                    "reasoning_content": "Hm.",
                    "tool_calls": [CALLED, CALLED | {"id": "c2"}],
                }
            ],
        ),
        (
            [CALL, RESULT, SAID],
            [
                {"role": "assistant", "content": "", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "lamp"},
                {"role": "assistant", "content": "Well."},
            ],
        ),
        ([SAID, SAID], [{"role": "assistant", "content": "Well."}] * 2),
        (
            [RESULT | {"output": [{"type": "input_text", "text": "lamp"}]}],
            [{"role": "tool", "tool_call_id": "c1", "content": "lamp"}],
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [{"role": "assistant", "content": "No."}],
        ),
    ],
)
def test_what_one_reply_consists_of_is_one_message(items, expected):
    assert chat_messages(items) == expected


others = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}),
)


def as_items(message: dict) -> list[dict]:
    match message["role"]:
        case "assistant":
            return output_items(message)
        case "tool":
            return [RESULT | {"call_id": message["tool_call_id"], "output": message["content"]}]
        case _:
            return [message]


@given(st.lists(st.tuples(replies(), others), max_size=4))
def test_every_conversation_comes_back_as_it_was_sampled(turns):
    conversation = [message for turn in turns for message in turn]
    items = [item for message in conversation for item in as_items(message)]
    assert chat_messages(json.loads(json.dumps(items))) == conversation


def test_the_fields_of_both_apis_pass_and_the_inert_ones_do_not():
    inert = {"metadata": {"a": "b"}, "store": False, "user": "me", "reasoning": {"effort": "low"}, "include": []}
    same = {"temperature": 0.5, "top_p": 0.9, "seed": 4, "parallel_tool_calls": False, "unheard_of": 1}
    assert translated(**inert, **same) == {"model": "desk", "messages": [USER], **same}


def test_earlier_messages_come_after_the_instructions_of_this_request():
    body = {"model": "desk", "input": [RESULT], "instructions": "Be brief."}
    chat = chat_request(body, [USER], input_items(body))
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "tool"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "look_up"}},
            {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        ),
        (
            {"tools": [{"type": "function", "name": "look_up", "parameters": {}, "strict": True, "description": None}]},
            {"tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]},
        ),
    ],
)
def test_what_has_another_name_is_renamed(given, expected):
    assert translated(**given) == {"model": "desk", "messages": [USER], **expected}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": [{"type": "computer_call"}]}, "computer_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": 5}, "input is a number"),
        ({"input": ["Hello"]}, "input item 0 is text"),
        ({"input": [{"role": "user", "content": None}]}, "the content of input item 0 is null"),
        ({"input": [{"role": "tool", "content": "5 EUR"}]}, "input item 0 has the role 'tool'"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input item 0 has no name"),
        ({"input": [{"type": "function_call_output", "output": "5"}]}, "input item 0 has no call_id"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": {"a": 1}}]},
            "the output of input item 0 is an object",
        ),
        ({"instructions": 5}, "instructions is a number"),
        ({"max_output_tokens": 0}, "max_output_tokens=0 leaves nothing to sample"),
        ({"include": "reasoning"}, "include='reasoning' is not a list"),
        ({"store": "yes"}, "store='yes' is not true or false"),
        ({"metadata": "x"}, "metadata='x' is not an object"),
        ({"reasoning": "low"}, "reasoning='low' is not an object"),
        ({"user": 5}, "user=5 is not text"),
        ({"tools": "refund"}, "tools is text"),
        ({"tools": [{"type": "function"}]}, "tool 0 has no name"),
        ({"tool_choice": 5}, "tool_choice is a number"),
        ({"text": {"format": "json"}}, "the format of text is text"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(given, named):
    with pytest.raises(BadRequest, match=named):
        translated(**given)


@given(
    json_values(
        "type", "text", "role", "content", "function_call", "reasoning", "summary", "call_id", "output", "user"
    ),
    st.sampled_from(["input", "instructions", "tools", "tool_choice", "text", "include", "max_output_tokens"]),
)
def test_any_value_is_translated_or_refused(value, name):
    for given_value in (
        value,
        [value],
        [{"type": "reasoning", "summary": value}],
        [{"role": "user", "content": value}],
    ):
        with contextlib.suppress(BadRequest):
            translated(**{name: given_value})
