"""Text completions over the embedded policy, through OpenAI's own client."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, BadRequestError

from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.serving.capture import Capture
from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.conftest import full_logprobs
from tests.trainer.serving.served import VERSION, client_of, serving

pytestmark = pytest.mark.slow

PROMPT = "I would like to return order"
ASKING = {"model": "desk", "prompt": PROMPT, "max_tokens": 8, "seed": 1}


@pytest.fixture(scope="module")
def server(policy) -> Iterator[EndpointServer]:
    with serving(policy) as running:
        yield running


@pytest.fixture
async def client(server) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client


async def test_a_text_goes_on_from_its_own_tokens(client, policy, embedded_base):
    completion = await client.completions.create(**ASKING)
    (choice,) = completion.choices
    assert choice.prompt_token_ids == policy.tokenizer.encode(PROMPT)
    assert (choice.policy_version, completion.usage.completion_tokens) == (VERSION, len(choice.token_ids))
    ids = choice.prompt_token_ids + choice.token_ids
    expected = full_logprobs(embedded_base, ids)[len(choice.prompt_token_ids) - 1 :]
    assert choice.token_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert policy.decode(choice.token_ids).startswith(choice.text)


async def test_a_streamed_text_is_the_whole_one(client):
    whole = await client.completions.create(**ASKING)
    stream = await client.completions.create(**ASKING, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_a_captured_text_is_trained(server, client):
    async with Capture(client) as capture, client_of(server, capture.api_key) as captured:
        completion = await captured.completions.create(**ASKING)
    (found,) = sequences(capture.trajectory)
    assert found.trained_tokens == len(completion.choices[0].token_ids)


@pytest.mark.parametrize(
    "setting",
    [
        {"echo": True},
        {"suffix": "."},
        {"best_of": 2},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [1, 10**9]},
        {"extra_body": {"unheard_of": 1}},
        {"extra_body": {"prompt": {"a": 1}}},
        {"extra_body": {"messages": ["x"]}},
    ],
)
async def test_what_cannot_be_served_is_refused(client, setting):
    with pytest.raises(BadRequestError):
        await client.completions.create(**(ASKING | setting))


async def test_prompts_of_one_request_are_sampled_together_up_to_a_limit(client):
    completion = await client.completions.create(**ASKING | {"prompt": [PROMPT, "hello"], "n": 2})
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    prompts = [choice.prompt_token_ids for choice in completion.choices]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    with pytest.raises(BadRequestError, match="513 prompts with n=2 are more than 1024 completions"):
        await client.completions.create(**ASKING | {"prompt": ["a"] * 513, "n": 2})
