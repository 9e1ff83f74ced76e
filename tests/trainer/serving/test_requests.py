"""What a request's body may say, in each API: it is read as what it must be, or refused by what is wrong with it."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gavel.trainer.serving import messages_api, responses_api
from gavel.trainer.serving.answers import ANSWERED, CLIENT_GONE, BadRequest, error_answer, object_of
from gavel.trainer.serving.chat_request import _INERT, ChatRequest, _Body, read_chat_request
from tests.trainer.serving.chunked import replies, texts

USER = {"role": "user", "content": "Hello"}
TEXT = {"type": "text", "text": "Hello"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"id": "7"}'}}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "lamp"}
TOOL = {"type": "function", "function": {"name": "refund"}}


def json_values(*words: str) -> st.SearchStrategy[object]:
    """JSON values of any shape; `words` are likely as texts and as names of fields."""
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
        *(
            ({name: value}, name)
            for name in ("max_tokens", "max_output_tokens", "seed", "n")
            for value in (True, 1.5, "3", {}, math.nan)
        ),
        *(({"temperature": value}, "temperature") for value in (True, "hot", math.nan, -0.1, 2.1)),
        *(({name: 1.5}, name) for name in ("top_k", "top_logprobs")),
        *(({name: "true"}, name) for name in ("stream", "logprobs", "parallel_tool_calls", "return_token_ids")),
        *(({"stream_options": value}, "stream_options") for value in (5, [])),
        ({"stream_options": {"include_usage": "yes"}}, "include_usage"),
        *(({"stop": value}, "stop") for value in (5, [""], [None])),
        ({"stop": ["\ud800"]}, "surrogate"),
        *(({"logit_bias": bias}, "logit_bias") for bias in ({"cat": 5}, {"5": None}, [5], {"-1": 5}, {"5": 101})),
        *(({name: value}, name) for name, value in (("store", 5), ("metadata", []), ("user", 7), ("verbosity", {}))),
        *(({"top_p": value}, "top_p") for value in (1.5, "much", True)),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"model": None}, "model"),
        ({"wombat": "x" * 10_000}, "wombat"),
        ({"tools": "refund"}, "tools is 'refund'"),
        ({"tools": [TOOL, {"type": "function", "function": {}}]}, "tools.1.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "'custom'"),
        (
            {"tools": [{"type": "function", "function": {"name": "refund", "parameters": "id"}}]},
            "tools.0.function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "refund", "description": 5}}]},
            "tools.0.function.description",
        ),
        ({"tools": [TOOL] * 1025}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages is 'hello'"),
        ({"messages": [{"content": "hello"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "messages.0.content"),
        ({"messages": [USER, {"role": "tool", "content": None}]}, "messages.1"),
        ({"messages": [{"role": "assistant", "tool_calls": {"id": "c"}}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "assistant", "content": "", "reasoning_content": {"a": 1}}]}, "reasoning_content"),
        ({"messages": [{"role": "tool", "content": "5", "tool_call_id": 5}]}, "tool_call_id"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "refund"}}]}, "function_call"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]},
            "messages.0.tool_calls.0.function",
        ),
    ],
    messages: [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": "refund"}, "tools is text"),
        ({"tools": [{"input_schema": {}}]}, "tool 0 has no name"),
        ({"tool_choice": {"type": "some"}}, "some"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"metadata": "me"}, "metadata='me'"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"system": {"type": "text"}}, "system"),
        ({"stop_sequences": "stop"}, "stop_sequences"),
        ({"messages": None}, "no messages"),
        ({"messages": [None]}, "message 0 is null"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "'tool'"),
        ({"messages": [{"role": "user"}]}, "message 0 has no content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "message 0, part 0"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
    ],
    responses: [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "log-probs"),
        ({"include": "reasoning"}, "include"),
        ({"store": "yes"}, "store"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"tools": [{"type": "function"}]}, "tool 0 has no name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": "json"}}, "format of text"),
        ({"instructions": 5}, "instructions"),
        ({"input": 5}, "input is a number"),
        ({"input": ["Hello"]}, "input item 0"),
        ({"input": [{"type": "computer_call"}]}, "computer_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"role": "tool", "content": "5 EUR"}]}, "'tool'"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input item 0 has no name"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": {"a": 1}}]}, "output of input item 0"),
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


@given(st.floats(0, 2))
def test_a_temperature_is_the_one_that_log_probs_can_be_divided_by(value):
    assert chat(temperature=value).temperature == (value if value >= 1e-5 else 0)


def test_what_may_be_written_in_several_ways_means_the_same():
    assert chat(max_tokens=3.0, seed=5.0, top_k=3.0, tools=[]) == chat(max_tokens=3, seed=5, top_k=3, tools=None)
    assert chat(**dict.fromkeys(_INERT)) == chat()
    assert chat(metadata={"run": 3, "tags": ["a"]}, user="", service_tier="unheard of") == chat()
    assert chat(modalities=["text"]).messages == [USER]


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("read", "fields", "expected"),
    [
        (messages, {"metadata": {"user_id": "me"}, "thinking": {"type": "enabled"}, "service_tier": "auto"}, {}),
        (messages, {"temperature": 0.5, "unheard_of": 1}, {"temperature": 0.5, "unheard_of": 1}),
        (messages, {"max_tokens": 5, "stop_sequences": ["\n"]}, {"max_tokens": 5, "stop": ["\n"]}),
        (
            messages,
            {"tools": [{"name": "look_up", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}]},
            {"tools": [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]},
        ),
        (
            messages,
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            messages,
            {"tool_choice": {"type": "tool", "name": "look_up"}},
            {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        ),
        (
            messages,
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}}},
        ),
        (responses, {"metadata": {"a": "b"}, "store": False, "reasoning": {"effort": "low"}, "include": []}, {}),
        (responses, {"temperature": 0.5, "seed": 4, "unheard_of": 1}, {"temperature": 0.5, "seed": 4, "unheard_of": 1}),
        (
            responses,
            {"max_output_tokens": 5, "tool_choice": "auto"},
            {"max_output_tokens": 5, "tool_choice": "auto"},
        ),
        (
            responses,
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (responses, {"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            responses,
            {"tool_choice": {"type": "function", "name": "look_up"}},
            {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        ),
        (
            responses,
            {"tools": [{"type": "function", "name": "look_up", "parameters": {}, "strict": True, "description": None}]},
            {"tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]},
        ),
    ],
)
def test_what_the_apis_call_otherwise_is_translated_and_the_rest_passes(read, fields, expected):
    assert read(**fields) == {"model": "m", "messages": [USER], **expected}


USE = {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"id": "7"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "lamp"}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": ""}
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look_up", "arguments": '{"id": "7"}'}
SAID = {"type": "message", "id": "m1", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "lamp"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([TEXT | {"cache_control": {"type": "ephemeral"}}], [USER]),
        ([RESULT, RESULT | {"tool_use_id": "c2"}], [ANSWER, ANSWER | {"tool_call_id": "c2"}]),
        ([RESULT | {"content": [{"type": "text", "text": "lamp"}]}, TEXT], [ANSWER, USER]),
        ([TEXT, {"type": "tool_result", "tool_use_id": "c1"}], [USER, ANSWER | {"content": ""}]),
    ],
)
def test_blocks_of_the_users_become_messages(content, expected):
    assert messages(messages=[{"role": "user", "content": content}])["messages"] == expected


def test_a_system_prompt_comes_first_and_blocks_of_a_reply_become_one_message():
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    found = messages(system=system, messages=[USER, {"role": "assistant", "content": [THINKING, TEXT, USE]}])
    reply = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm.", "tool_calls": [CALLED]}
    assert found["messages"] == [{"role": "system", "content": "Be brief."}, USER, reply]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "text", "text": "lo"}]}],
            [USER],
        ),
        ([SAID, SAID], [{"role": "assistant", "content": "Well."}] * 2),
        (
            [THOUGHT, SAID, ITEM, ITEM | {"call_id": "c2"}],
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
            [ITEM, OUTPUT | {"output": [{"type": "input_text", "text": "lamp"}]}, SAID],
            [
                {"role": "assistant", "content": "", "tool_calls": [CALLED]},
                ANSWER,
                {"role": "assistant", "content": "Well."},
            ],
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [{"role": "assistant", "content": "No."}],
        ),
    ],
)
def test_the_items_of_one_reply_become_one_message(items, expected):
    assert responses_api.chat_messages(items) == expected


def test_earlier_messages_come_after_the_instructions_of_this_request():
    body = {"model": "m", "input": [OUTPUT], "instructions": "Be brief."}
    found = responses_api.chat_request(body, [USER], responses_api.input_items(body))
    assert [message["role"] for message in found["messages"]] == ["system", "user", "tool"]


@given(replies(st.dictionaries(texts, texts, max_size=3).map(lambda given: json.dumps(given, ensure_ascii=False))))
def test_every_reply_comes_back_from_blocks_as_it_was_sampled(reply):
    blocks = json.loads(json.dumps(messages_api.content_blocks(reply)))
    assert messages(messages=[USER, {"role": "assistant", "content": blocks}])["messages"] == [USER, reply]


def as_items(message: dict) -> list[dict]:
    match message["role"]:
        case "assistant":
            return responses_api.output_items(message)
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
        chat: (*_Body.model_fields, *_INERT, "wombat"),
        messages: ("messages", "system", "tools", "tool_choice", "output_config", "output_format", "stop_sequences"),
        responses: ("input", "instructions", "tools", "tool_choice", "text", "include", "max_output_tokens"),
    }
    for read, names in fields.items():
        for name in names:
            for given_value in (
                value,
                [value],
                [{"role": "user", "content": [value]}],
                [{"type": "reasoning", "summary": value}],
            ):
                with contextlib.suppress(BadRequest):
                    read(**{name: given_value})
    for name in ("role", "content", "tool_calls", "tool_call_id", "refusal", "reasoning_content"):
        with contextlib.suppress(BadRequest):
            chat(messages=[{"role": "assistant", name: value}])


def with_body(body: bytes, **headers: str) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": named}, receive)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{oops", "no JSON"),
        (b"", "no JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"[" * 100_000, "nested"),
        (b'{"tools": ' * 100_000, "nested"),
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(body, reason):
    with pytest.raises(ANSWERED) as caught:
        await object_of(with_body(body))
    status, answer = error_answer(caught.value)
    assert (status, reason in answer["error"]["message"]) == (400, True)


async def test_a_compressed_body_is_refused_by_the_name_of_its_encoding():
    with pytest.raises(BadRequest, match="'gzip'"):
        await object_of(with_body(b"\x1f\x8b", content_encoding="gzip"))


async def test_a_body_is_read_up_to_a_limit_and_one_whose_client_goes_away_is_no_fault_of_the_endpoint():
    given_pieces = 0

    async def receive() -> dict[str, Any]:
        nonlocal given_pieces
        given_pieces += 1
        return {"type": "http.request", "body": b" " * (1 << 20), "more_body": True}

    async def leave() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "headers": []}
    for receiver, status in ((receive, 413), (leave, CLIENT_GONE)):
        with pytest.raises(ANSWERED) as caught:
            await object_of(Request(scope, receiver))
        assert error_answer(caught.value)[0] == status
    assert given_pieces == 33
