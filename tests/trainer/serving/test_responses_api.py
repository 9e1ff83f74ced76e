"""The Responses API over the embedded policy, through OpenAI's own client."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response

from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.serving.capture import Capture
from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.serving.served import QUESTION, SYSTEM, TOOLS, client_of, serving, tool_result

pytestmark = pytest.mark.slow

FLAT_TOOLS = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
ASKING = {"model": "desk", "instructions": SYSTEM, "tools": FLAT_TOOLS, "temperature": 0}


@pytest.fixture(scope="module")
def server(policy) -> Iterator[EndpointServer]:
    with serving(policy) as running:
        yield running


@pytest.fixture
async def client(server) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client


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


async def test_what_was_not_stored_cannot_be_gone_on_from(client):
    response = await client.responses.create(**ASKING, input=QUESTION, max_output_tokens=1, store=False)
    with pytest.raises(APIStatusError, match=f"{response.id}.*is not stored") as error:
        await client.responses.create(**ASKING, input="And?", previous_response_id=response.id)
    assert error.value.status_code == 400


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "gpt-5"}, "gpt-5"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"input": [{"type": "computer_call", "call_id": "1"}]}, "computer_call"),
        ({"input": []}, "no messages"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
        ({"extra_body": {"input": 5}}, "input"),
        ({"extra_body": {"input": ["x", None]}}, "input"),
        ({"extra_body": {"text": "json"}}, "text is text"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused_before_the_stream_begins(client, settings, said, stream):
    asked = ASKING | {"input": QUESTION, "instructions": None, "stream": stream} | settings
    with pytest.raises(APIStatusError, match=said) as error:
        await client.responses.create(**asked)
    assert error.value.status_code == 400
