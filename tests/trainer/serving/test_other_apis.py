"""Endpoints beside the chat: Messages through Anthropic's client, Responses, completions, and vLLM's own route."""

import json
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from anthropic import APIStatusError, AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving import responses_api as response_store
from gavel.trainer.serving.answers import BadRequest
from gavel.trainer.serving.capture import Capture
from gavel.trainer.serving.messages_api import message_events, message_object
from gavel.trainer.serving.openai_server import EndpointServer
from gavel.trainer.serving.responses_api import ResponseStore, response_events, response_object
from tests.trainer.conftest import full_logprobs
from tests.trainer.serving.served import (
    OPENING,
    QUESTION,
    SYSTEM,
    TOOLS,
    VERSION,
    client_of,
    completion_of,
    replies,
    texts,
    tool_result,
)

pytestmark = pytest.mark.slow


def assert_goes_on(trajectory: Trajectory, policy: Policy, sampled_tokens: int) -> None:
    one, other = trajectory.choices()
    assert other.continues_sampled
    before = one.prompt_token_ids + one.token_ids
    assert other.prompt_token_ids[: len(before)] == before
    (found,) = sequences(trajectory)
    assert found.trained_tokens == sampled_tokens
    assert not mismatches(trajectory, policy.decode)


CACHED = {"cache_control": {"type": "ephemeral"}}
OWN_TOOLS = [
    {"name": each["name"], "description": each["description"], "input_schema": each["parameters"], **CACHED}
    for each in (tool["function"] for tool in TOOLS)
]
ASKING = {"model": "desk", "system": SYSTEM, "tools": OWN_TOOLS, "max_tokens": 64, "extra_body": {"temperature": 0}}
ASKED = [{"role": "user", "content": [{"type": "text", "text": QUESTION, **CACHED}]}]


def anthropic_of(server: EndpointServer, api_key: str = "gavel", base_url: str = "") -> AsyncAnthropic:
    own, http = server.base_url.removesuffix("/v1"), DefaultAsyncHttpxClient(trust_env=False)
    return AsyncAnthropic(base_url=base_url or own, api_key=api_key, max_retries=0, http_client=http)


@pytest.fixture
async def anthropic(server) -> AsyncIterator[AsyncAnthropic]:
    async with anthropic_of(server) as client:
        yield client


async def reply(client: AsyncAnthropic, streamed: bool, **settings) -> Message:
    if not streamed:
        return await client.messages.create(**(ASKING | settings))
    async with client.messages.stream(**(ASKING | settings)) as stream:
        return await stream.get_final_message()


async def tool_results(message: Message) -> list[dict]:
    used = [block for block in message.content if block.type == "tool_use"]
    found = [[{"type": "text", "text": await tool_result(use.name, json.dumps(use.input))}] for use in used]
    return [
        {"type": "tool_result", "tool_use_id": use.id, "content": said} for use, said in zip(used, found, strict=True)
    ]


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages_with_tools_go_on_from_the_very_tokens_that_were_sampled(server, client, policy, streamed):
    async with (
        Capture(client) as capture,
        anthropic_of(server, capture.api_key, capture.environment["ANTHROPIC_BASE_URL"]) as captured,
    ):
        first = await reply(captured, streamed, messages=ASKED)
        said = {"role": "assistant", "content": first.content}
        answered = {"role": "user", "content": await tool_results(first)}
        second = await reply(captured, streamed, messages=[*ASKED, said, answered])
    assert [message.stop_reason for message in (first, second)] == ["tool_use", "end_turn"]
    assert [block.type for block in second.content] == ["text"]
    assert_goes_on(capture.trajectory, policy, first.usage.output_tokens + second.usage.output_tokens)


async def test_a_prompt_is_that_of_the_same_chat_a_stop_sequence_is_named_and_a_thread_refused(client, anthropic):
    message = await anthropic.messages.create(**(ASKING | {"max_tokens": 1}), messages=ASKED)
    counted = await anthropic.messages.count_tokens(model="desk", system=SYSTEM, tools=OWN_TOOLS, messages=ASKED)
    chat = await client.chat.completions.create(model="desk", messages=OPENING, tools=TOOLS, max_tokens=1)
    assert message.usage.input_tokens == counted.input_tokens == chat.usage.prompt_tokens
    assert message.stop_reason == "max_tokens"
    with pytest.raises(APIStatusError, match="thread is not supported") as error:
        await anthropic.messages.create(**(ASKING | {"extra_body": {"thread": {"type": "create"}}}), messages=ASKED)
    assert error.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "refunded 1001"}
    use = {"type": "tool_use", "id": "c1", "name": "refund", "input": {"order_id": "1001"}}
    asked = [*ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    message = await reply(anthropic, streamed=True, messages=asked, stop_sequences=["nowhere", " your"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " your")
    assert message.content[0].text == "I have refunded"


objects = st.dictionaries(texts, texts, max_size=3).map(json.dumps)
MESSAGE_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


@given(replies(objects), st.sampled_from(["stop", "tool_calls", "length"]))
def test_a_streamed_message_is_the_whole_one(reply, finish_reason):
    whole = message_object(completion_of(reply, finish_reason))
    made, parts = None, dict[int, bytes]()
    for event in map(MESSAGE_EVENT.validate_python, message_events(whole)):
        made = accumulate_event(event=event, current_snapshot=made, json_bufs=parts)
    assert made.model_dump() == Message.model_validate(whole).model_dump()


FLAT_TOOLS = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
RESPONDING = {"model": "desk", "instructions": SYSTEM, "tools": FLAT_TOOLS, "temperature": 0}


async def respond(client: AsyncOpenAI, streamed: bool, **settings) -> Response:
    if not streamed:
        return await client.responses.create(**(RESPONDING | settings))
    async with client.responses.stream(**(RESPONDING | settings)) as stream:
        return await stream.get_final_response()


async def results_of(response: Response) -> list[dict]:
    calls = [item for item in response.output if item.type == "function_call"]
    found = [{"call_id": call.call_id, "output": await tool_result(call.name, call.arguments)} for call in calls]
    return [{"type": "function_call_output", **each} for each in found]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_responses_with_tools_go_on_from_the_very_tokens(server, client, policy, streamed, by_id):
    async with Capture(client) as capture, client_of(server, capture.api_key) as captured:
        given, responses = [{"role": "user", "content": QUESTION}], []
        for _ in range(2):
            before = {"previous_response_id": responses[-1].id} if by_id and responses else {}
            responses.append(await respond(captured, streamed, input=given, **before))
            results = await results_of(responses[-1])
            said = [item.model_dump(exclude_none=True) for item in responses[-1].output]
            given = results if by_id else [*given, *said, *results]
    assert [item.type for response in responses for item in response.output] == ["function_call", "message"]
    assert_goes_on(capture.trajectory, policy, sum(response.usage.output_tokens for response in responses))


REQUEST = {"model": "desk", "input": "Hello"}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@given(replies(), st.sampled_from(["stop", "tool_calls", "length"]))
def test_the_events_of_a_response_say_what_it_holds(reply, finish_reason):
    response = response_object(REQUEST, completion_of(reply, finish_reason))
    events = list(response_events(response))
    for number, event in enumerate(events):
        assert EVENT.validate_python(event).type == event["type"]
        assert event["sequence_number"] == number
    assert events[-1]["response"] == response
    output = response["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    said = {event["item_id"]: event["delta"] for event in events if event["type"].endswith(".delta")}
    for item in output:
        is_call = item["type"] == "function_call"
        assert said[item["id"]] == (item["arguments"] if is_call else item["content"][0]["text"])


USER = {"role": "user", "content": "Hello"}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}


def test_the_longest_unused_response_is_forgotten_first_with_its_items_and_then_refused_by_name(monkeypatch):
    monkeypatch.setattr(response_store, "_STORED", 2)
    store = ResponseStore()
    for number in (1, 2):
        store.add(f"resp_{number}", [USER], [ITEM | {"id": f"msg_{number}"}])
    store.conversation("resp_1")
    store.add("resp_3", [USER], [ITEM | {"id": "msg_3"}])
    assert store.conversation("resp_1")
    assert store.resolved([{"type": "item_reference", "id": "msg_1"}])
    with pytest.raises(BadRequest, match="resp_2"):
        store.conversation("resp_2")
    with pytest.raises(BadRequest, match="msg_2"):
        store.resolved([{"type": "item_reference", "id": "msg_2"}])


PROMPT = "I would like to return order"
COMPLETING = {"model": "desk", "prompt": PROMPT, "max_tokens": 8, "seed": 1}


async def test_a_text_goes_on_from_its_own_tokens_and_is_trained(server, client, policy, embedded_base):
    async with Capture(client) as capture, client_of(server, capture.api_key) as captured:
        completion = await captured.completions.create(**COMPLETING, logprobs=1)
    (choice,) = completion.choices
    assert choice.logprobs.token_logprobs == choice.token_logprobs
    assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset)
    assert choice.logprobs.text_offset[:2] == [0, len(choice.logprobs.tokens[0])]
    (found,) = sequences(capture.trajectory)
    assert found.trained_tokens == len(choice.token_ids)
    assert choice.prompt_token_ids == policy.tokenizer.encode(PROMPT)
    assert (choice.policy_version, completion.usage.completion_tokens) == (VERSION, len(choice.token_ids))
    ids = choice.prompt_token_ids + choice.token_ids
    expected = full_logprobs(embedded_base, ids)[len(choice.prompt_token_ids) - 1 :]
    assert choice.token_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert policy.decode(choice.token_ids).startswith(choice.text)
    stream = await client.completions.create(**COMPLETING, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == choice.text


async def test_prompts_of_one_request_are_sampled_together_up_to_a_limit(client):
    completion = await client.completions.create(**COMPLETING | {"prompt": [PROMPT, "hello"], "n": 2})
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    prompts = [choice.prompt_token_ids for choice in completion.choices]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    with pytest.raises(BadRequestError, match="513 prompts with n=2 are more than 1024 completions"):
        await client.completions.create(**COMPLETING | {"prompt": ["a"] * 513, "n": 2})


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url.removesuffix("/v1"), trust_env=False) as client:
        yield client


def test_token_ids_go_on_with_token_ids_and_their_log_probs(http, policy, embedded_base):
    ids = policy.tokenizer.encode(PROMPT)
    body = {"prompt": {"prompt_token_ids": ids}, "n": 2, "max_tokens": 6, "temperature": 1.0, "logprobs": 0, "seed": 1}
    found = http.post("/generate", json=body).raise_for_status().json()
    assert len(found["text"]) == len(found["finish_reasons"]) == 2
    for said, places in zip(found["token_ids"], found["logprobs"], strict=True):
        pairs = [next(iter(place[0].items())) for place in places]
        assert [int(token) for token, _ in pairs] == said
        expected = full_logprobs(embedded_base, ids + said)[len(ids) - 1 :]
        assert [value for _, value in pairs] == pytest.approx(expected.tolist(), abs=1e-4)


REFUSED = [
    *(("/v1/completions", COMPLETING | {"prompt": prompt}) for prompt in ([], [1, 10**9], {"a": 1})),
    *(("/v1/completions", COMPLETING | body) for body in ({"echo": True}, {"logprobs": 2}, {"unheard_of": 1})),
    *(("/generate", {"prompt": {"prompt_token_ids": ids}}) for ids in ([], [True])),
    *(("/generate", body) for body in ({}, {"prompt": "Hello", "logprobs": 5})),
    ("/generate", {"prompt": {"prompt_token_ids": [5, 10**30]}, "max_tokens": 1}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_what_cannot_be_served_is_refused_and_the_engine_goes_on(http, policy, path, body):
    answer = http.post(path, json=body)
    assert (answer.status_code, "message" in answer.json()["error"]) == (400, True)
    if "max_tokens" in body and path == "/generate":
        assert f"Its tokens are 0 to {policy.vocabulary - 1}." in answer.json()["error"]["message"]
    assert http.post("/generate", json={"prompt": {"prompt_token_ids": [5]}, "max_tokens": 1}).status_code == 200
