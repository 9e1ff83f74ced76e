"""Anthropic's messages, whole and as events."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.serving.messages_api import MessageStream, message
from tests.trainer.serving.chunked import chunks_of, completion_of, replies, texts

objects = st.dictionaries(texts, texts, max_size=3).map(json.dumps)


async def events_of(reply, **settings) -> list[dict]:
    return [event async for event in MessageStream().events(chunks_of(reply, **settings))]


def accumulated(events: list[dict]) -> dict:
    """The message that a client makes of the events."""
    made: dict = {}
    json_text: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "message_start", "message": begun}:
                made = json.loads(json.dumps(begun))
            case {"type": "content_block_start", "content_block": block, "index": index}:
                assert index == len(made["content"])
                made["content"].append(dict(block))
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta"} as delta, "index": index}:
                json_text[index] = json_text.get(index, "") + delta["partial_json"]
            case {"type": "content_block_delta", "delta": delta, "index": index}:
                for name, value in delta.items():
                    if name != "type":
                        made["content"][index][name] += value
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                made |= delta | {"usage": usage}
    for index, text in json_text.items():
        made["content"][index]["input"] = json.loads(text)
    return made


@given(replies(objects), st.sampled_from(["stop", "tool_calls", "length"]), st.integers(1, 20))
async def test_a_streamed_message_is_the_whole_one(reply, finish_reason, size):
    events = await events_of(reply, size=size, finish_reason=finish_reason)
    assert accumulated(events) | {"id": ""} == message(completion_of(reply, finish_reason)) | {"id": ""}
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"finish_reason": "stop"}, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": "\n"}, ("stop_sequence", "\n")),
        ({"finish_reason": "stop", "stop_reason": 151645}, ("end_turn", None)),
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "tool_calls"}, ("tool_use", None)),
    ],
)
def test_why_a_reply_ended_is_told(choice, expected):
    completion = completion_of({"role": "assistant", "content": "Well."})
    completion["choices"][0] |= choice
    made = message(completion)
    assert (made["stop_reason"], made["stop_sequence"]) == expected
