"""vLLM's native route over the embedded policy, as Atropos' managed servers ask it."""

from collections.abc import Iterator

import httpx
import pytest

from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.conftest import full_logprobs
from tests.trainer.serving.served import serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(policy) -> Iterator[EndpointServer]:
    with serving(policy) as running:
        yield running


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
        {"prompt": ""},
        {"prompt": {"prompt_token_ids": []}},
        {"prompt": {"prompt_token_ids": ["a"]}},
        {"prompt": {"prompt_token_ids": [True]}},
        {"prompt": "Hello", "stream": True},
        {"prompt": "Hello", "prompt_logprobs": 1},
        {"prompt": "Hello", "logprobs": 5},
    ],
)
def test_what_is_not_served_is_refused(http, body):
    answer = http.post("/generate", json=body)
    assert (answer.status_code, "message" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("token", [10**6, 10**30])
def test_a_token_that_the_model_does_not_have_is_refused_and_the_engine_goes_on(http, policy, token):
    answer = http.post("/generate", json={"prompt": {"prompt_token_ids": [5, token]}, "max_tokens": 1})
    assert answer.status_code == 400
    assert f"Its tokens are 0 to {policy.vocabulary - 1}." in answer.json()["error"]["message"]
    assert http.post("/generate", json={"prompt": {"prompt_token_ids": [5]}, "max_tokens": 1}).status_code == 200
