"""The Messages API over the embedded policy, through Anthropic's own client, and its messages as events."""

import json
from collections.abc import AsyncIterator

import pytest
from anthropic import APIStatusError, AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.serving.capture import Capture
from gavel.trainer.serving.messages_api import MessageStream, message
from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.serving.served import (
    QUESTION,
    SYSTEM,
    TOOLS,
    chunks_of,
    client_of,
    completion_of,
    replies,
    texts,
    tool_result,
)

pytestmark = pytest.mark.slow


OWN_TOOLS = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
        "cache_control": {"type": "ephemeral"},
    }
    for tool in TOOLS
]
ASKING = {"model": "desk", "system": SYSTEM, "tools": OWN_TOOLS, "max_tokens": 64, "extra_body": {"temperature": 0}}
ASKED = [{"role": "user", "content": [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]}]


def anthropic_of(server: EndpointServer, api_key: str = "gavel", base_url: str = "") -> AsyncAnthropic:
    """To be closed by `async with`."""
    return AsyncAnthropic(
        base_url=base_url or server.base_url.removesuffix("/v1"),
        api_key=api_key,
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(trust_env=False),
    )


@pytest.fixture
async def client(server) -> AsyncIterator[AsyncAnthropic]:
    async with anthropic_of(server) as client:
        yield client


async def reply(client: AsyncAnthropic, streamed: bool, **settings) -> Message:
    if not streamed:
        return await client.messages.create(**(ASKING | settings))
    async with client.messages.stream(**(ASKING | settings)) as stream:
        return await stream.get_final_message()


async def results_of(message: Message) -> list[dict]:
    return [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": [{"type": "text", "text": await tool_result(block.name, json.dumps(block.input))}],
        }
        for block in message.content
        if block.type == "tool_use"
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_with_tools_goes_on_from_the_very_tokens_that_were_sampled(server, policy, streamed):
    async with (
        client_of(server) as owner,
        Capture(owner) as capture,
        anthropic_of(server, capture.api_key, capture.environment["ANTHROPIC_BASE_URL"]) as client,
    ):
        first = await reply(client, streamed, messages=ASKED)
        said = {"role": "assistant", "content": first.content}
        answered = {"role": "user", "content": await results_of(first)}
        second = await reply(client, streamed, messages=[*ASKED, said, answered])
    assert [message.stop_reason for message in (first, second)] == ["tool_use", "end_turn"]
    assert [block.type for block in second.content] == ["text"]
    one, other = capture.trajectory.choices()
    assert other.continues_sampled
    before = one.prompt_token_ids + one.token_ids
    assert other.prompt_token_ids[: len(before)] == before
    (found,) = sequences(capture.trajectory)
    assert found.trained_tokens == first.usage.output_tokens + second.usage.output_tokens
    assert not mismatches(capture.trajectory, policy.decode)


async def test_the_prompt_is_that_of_the_same_chat_and_can_be_counted(server, client):
    message = await client.messages.create(**(ASKING | {"max_tokens": 1}), messages=ASKED)
    counted = await client.messages.count_tokens(model="desk", system=SYSTEM, tools=OWN_TOOLS, messages=ASKED)
    async with client_of(server) as owner:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
        chat = await owner.chat.completions.create(model="desk", messages=messages, tools=TOOLS, max_tokens=1)
    assert message.usage.input_tokens == counted.input_tokens == chat.usage.prompt_tokens
    assert message.stop_reason == "max_tokens"


async def test_a_message_that_ends_at_a_stop_sequence_names_it(client):
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "refunded 1001"}
    use = {"type": "tool_use", "id": "c1", "name": "refund", "input": {"order_id": "1001"}}
    asked = [*ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    ends = {"messages": asked, "stop_sequences": ["nowhere", " your"]}
    message = await reply(client, streamed=True, **ends)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " your")
    assert message.content[0].text == "I have refunded"


async def test_a_base_url_that_ends_with_the_version_is_served_too(server):
    async with anthropic_of(server, base_url=server.base_url) as client:
        assert (await client.messages.create(**(ASKING | {"max_tokens": 1}), messages=ASKED)).id
        assert "desk" in [model.id async for model in client.models.list()]


async def test_a_route_that_is_not_served_is_told_as_this_api_tells_errors(client):
    with pytest.raises(APIStatusError, match="is not served here") as error:
        await client.messages.batches.list()
    assert (error.value.status_code, error.value.body["type"]) == (404, "error")


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


async def test_a_thread_is_refused_so_that_clients_go_on_without_one(client):
    with pytest.raises(APIStatusError, match="thread is not supported") as error:
        await client.messages.create(**(ASKING | {"extra_body": {"thread": {"type": "create"}}}), messages=ASKED)
    assert error.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"
