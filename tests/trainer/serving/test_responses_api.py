"""The Responses API over the embedded policy, through OpenAI's own client, event by event, and what it remembers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.serving import responses_api as response_store
from gavel.trainer.serving.answers import BadRequest
from gavel.trainer.serving.capture import Capture
from gavel.trainer.serving.responses_api import ResponseStore, ResponseStream, response
from tests.trainer.serving.served import (
    QUESTION,
    SYSTEM,
    TOOLS,
    chunks_of,
    client_of,
    completion_of,
    replies,
    tool_result,
)

pytestmark = pytest.mark.slow


FLAT_TOOLS = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
ASKING = {"model": "desk", "instructions": SYSTEM, "tools": FLAT_TOOLS, "temperature": 0}


async def respond(client: AsyncOpenAI, streamed: bool, **settings) -> Response:
    if not streamed:
        return await client.responses.create(**(ASKING | settings))
    async with client.responses.stream(**(ASKING | settings)) as stream:
        return await stream.get_final_response()


async def results_of(response: Response) -> list[dict]:
    return [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": await tool_result(call.name, call.arguments),
        }
        for call in response.output
        if call.type == "function_call"
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_a_conversation_with_tools_goes_on_from_the_very_tokens_that_were_sampled(
    server, client, policy, streamed, by_id
):
    async with Capture(client) as capture, client_of(server, capture.api_key) as captured:
        given, responses = [{"role": "user", "content": QUESTION}], []
        for _ in range(2):
            before = {"previous_response_id": responses[-1].id} if by_id and responses else {}
            responses.append(await respond(captured, streamed, input=given, **before))
            results = await results_of(responses[-1])
            said = [item.model_dump(exclude_none=True) for item in responses[-1].output]
            given = results if by_id else [*given, *said, *results]
    assert [item.type for response in responses for item in response.output] == ["function_call", "message"]
    first, second = capture.trajectory.choices()
    assert second.continues_sampled
    assert second.prompt_token_ids[: len(first.prompt_token_ids + first.token_ids)] == (
        first.prompt_token_ids + first.token_ids
    )
    (found,) = sequences(capture.trajectory)
    assert found.trained_tokens == sum(response.usage.output_tokens for response in responses)
    assert not mismatches(capture.trajectory, policy.decode)


async def test_the_prompt_is_that_of_the_same_chat(client):
    response = await client.responses.create(**ASKING, input=QUESTION, max_output_tokens=1)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    chat = await client.chat.completions.create(model="desk", messages=messages, tools=TOOLS, max_tokens=1)
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


REQUEST = {"model": "desk", "input": "Hello"}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


async def events_of(reply, **settings) -> list[dict]:
    stream = ResponseStream(REQUEST, "resp_1")
    return [event async for event in stream.events(chunks_of(reply, **settings))]


def without_ids(items: list[dict]) -> list[dict]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@given(replies(), st.sampled_from(["stop", "tool_calls", "length"]), st.integers(1, 20))
async def test_a_streamed_response_ends_as_the_whole_one(reply, finish_reason, size):
    last = (await events_of(reply, size=size, finish_reason=finish_reason))[-1]["response"]
    whole = response(REQUEST, completion_of(reply, finish_reason), "resp_1")
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert last | {"output": []} == whole | {"output": []}


@given(replies(), st.integers(1, 20))
async def test_the_events_say_what_the_last_one_holds(reply, size):
    events = await events_of(reply, size=size)
    for number, event in enumerate(events):
        assert EVENT.validate_python(event).type == event["type"]
        assert event["sequence_number"] == number
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    said: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            said[event["item_id"]] = said.get(event["item_id"], "") + event["delta"]
    for item in output:
        text = (
            item["arguments"] if item["type"] == "function_call" else "".join(part["text"] for part in item["content"])
        )
        assert said.get(item["id"], "") == text


USER = {"role": "user", "content": "Hello"}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}


def test_what_is_not_stored_is_refused_by_name():
    store = ResponseStore()
    with pytest.raises(BadRequest, match="resp_9"):
        store.conversation("resp_9")
    with pytest.raises(BadRequest, match="msg_9"):
        store.resolved([{"type": "item_reference", "id": "msg_9"}])


def test_the_longest_unused_response_is_forgotten_first_with_its_items(monkeypatch):
    monkeypatch.setattr(response_store, "_STORED", 2)
    store = ResponseStore()
    for number in (1, 2):
        store.add(f"resp_{number}", [USER], [ITEM | {"id": f"msg_{number}"}])
    store.conversation("resp_1")
    store.add("resp_3", [USER], [ITEM | {"id": "msg_3"}])
    assert store.conversation("resp_1")
    assert store.resolved([{"type": "item_reference", "id": "msg_1"}])
    with pytest.raises(BadRequest):
        store.conversation("resp_2")
    with pytest.raises(BadRequest):
        store.resolved([{"type": "item_reference", "id": "msg_2"}])
