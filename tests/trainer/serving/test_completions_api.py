"""Texts that go on without a chat: OpenAI's completions, and vLLM's own route."""

from collections.abc import Iterator

import httpx
import pytest
from openai import BadRequestError

from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.serving.capture import Capture
from tests.trainer.conftest import full_logprobs
from tests.trainer.serving.served import VERSION, client_of

pytestmark = pytest.mark.slow


PROMPT = "I would like to return order"
ASKING = {"model": "desk", "prompt": PROMPT, "max_tokens": 8, "seed": 1}


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


async def test_a_text_completion_shows_its_likeliest_tokens_and_where_each_begins(client):
    found = await client.completions.create(model="desk", prompt="The order", logprobs=2, temperature=0, seed=1)
    logprobs = found.choices[0].logprobs
    assert all(len(top) <= 2 for top in logprobs.top_logprobs)
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())
    assert logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]


async def test_a_captured_text_is_trained(server, client):
    async with Capture(client) as capture, client_of(server, capture.api_key) as captured:
        completion = await captured.completions.create(**ASKING)
    (found,) = sequences(capture.trajectory)
    assert found.trained_tokens == len(completion.choices[0].token_ids)


@pytest.mark.parametrize(
    "setting",
    [
        {"echo": True},
        {"prompt": []},
        {"prompt": [1, 10**9]},
        {"extra_body": {"unheard_of": 1}},
        {"extra_body": {"prompt": {"a": 1}}},
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


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url.removesuffix("/v1"), trust_env=False) as client:
        yield client


def test_token_ids_go_on_with_token_ids_and_their_log_probs(http, policy, embedded_base):
    ids = policy.tokenizer.encode("I would like to return order")
    body = {"prompt": {"prompt_token_ids": ids}, "n": 2, "max_tokens": 6, "temperature": 1.0, "logprobs": 0, "seed": 1}
    found = http.post("/generate", json=body).raise_for_status().json()
    assert len(found["text"]) == len(found["finish_reasons"]) == 2
    for said, places in zip(found["token_ids"], found["logprobs"], strict=True):
        pairs = [next(iter(place[0].items())) for place in places]
        assert [int(token) for token, _ in pairs] == said
        expected = full_logprobs(embedded_base, ids + said)[len(ids) - 1 :]
        assert [value for _, value in pairs] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": {"prompt_token_ids": []}},
        {"prompt": {"prompt_token_ids": [True]}},
        {"prompt": "Hello", "logprobs": 5},
    ],
)
def test_what_is_not_served_is_refused(http, body):
    answer = http.post("/generate", json=body)
    assert (answer.status_code, "message" in answer.json()["error"]) == (400, True)


def test_a_token_that_the_model_does_not_have_is_refused_and_the_engine_goes_on(http, policy):
    answer = http.post("/generate", json={"prompt": {"prompt_token_ids": [5, 10**30]}, "max_tokens": 1})
    assert answer.status_code == 400
    assert f"Its tokens are 0 to {policy.vocabulary - 1}." in answer.json()["error"]["message"]
    assert http.post("/generate", json={"prompt": {"prompt_token_ids": [5]}, "max_tokens": 1}).status_code == 200
