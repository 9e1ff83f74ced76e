"""Batches of every vendor that LiteLLM speaks them with, through the real LiteLLM, against fakes on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.llm.batch_vendors import batch_price, vendor_of
from gavel.llm.errors import LlmError
from tests.batches import BatchService, refuses
from tests.endpoint import Answer, Request
from tests.llm.test_batch_cassette import ANSWERS, QUESTIONS, Asker, echo, texts
from tests.vendor_batches import MistralService, XaiService

pytestmark = pytest.mark.slow

SERVICES = {
    "mistral/judge": MistralService,
    "xai/judge": XaiService,
    "hosted_vllm/judge": BatchService,
    "litellm_proxy/judge": BatchService,
}
ALL = pytest.mark.parametrize("model", SERVICES)


@pytest.fixture
def service(model: str) -> Iterator[BatchService]:
    service = SERVICES[model]()
    service.answer = echo
    yield service
    service.close()


@ALL
async def test_questions_are_answered_in_one_batch_at_the_price_of_the_vendor(model, service, tmp_path):
    found = await Asker(service, tmp_path, model=model, prices={model: (2.0, 8.0)}).all(QUESTIONS)
    assert texts(found) == ANSWERS
    assert (len(service.batches), set(service.asked.values())) == (1, {1})
    [sent] = [batch.requests[0]["body"] for batch in service.batches.values()]
    assert sent["model"] == "judge"
    share = {"mistral/judge": 0.5, "xai/judge": 0.8}.get(model, 1.0)
    assert [each.cost_usd for each in found] == [pytest.approx(share * (100 * 2 + 20 * 8) / 1e6)] * len(found)


@ALL
async def test_what_an_expired_batch_did_not_reach_is_asked_again(model, service, tmp_path):
    service.fate = lambda number: "expired" if number == 1 and model != "xai/judge" else "completed"
    service.share = 0.5
    assert texts(await Asker(service, tmp_path, model=model).all(QUESTIONS)) == ANSWERS
    assert sum(service.asked.values()) == 20


@ALL
async def test_what_a_cancelled_batch_has_answered_is_kept(model, service, tmp_path):
    service.fate = lambda number: "cancelled" if number == 1 else "completed"
    service.share = 0.5
    asker = Asker(service, tmp_path, model=model)
    with pytest.raises(LlmError, match="cancelled"):
        await asker.all(QUESTIONS)
    asker.job.close()
    assert texts(await Asker(service, tmp_path, model=model).all(QUESTIONS)) == ANSWERS
    assert sum(service.asked.values()) == 20


@ALL
async def test_a_batch_that_is_refused_as_a_whole_says_why(model, service, tmp_path):
    service.fate = lambda number: "failed"
    with pytest.raises(LlmError, match="Enqueued token limit reached"):
        await Asker(service, tmp_path, model=model).all(QUESTIONS)


@ALL
async def test_a_request_that_fails_for_good_leaves_the_others_alone(model, service, tmp_path):
    def policy(request: Request) -> Answer:
        refused = request["messages"][0]["content"] == "question 3"
        return refuses(400, "You may not ask this.")(request) if refused else echo(request)

    service.answer = policy
    found = await Asker(service, tmp_path, model=model).all(QUESTIONS)
    assert isinstance(found[3], LlmError)
    assert "You may not ask this" in found[3].message
    assert texts(found[:3] + found[4:]) == ANSWERS[:3] + ANSWERS[4:]


@ALL
async def test_a_wrong_key_is_an_error_with_its_remedy(model, service, tmp_path):
    params = {**service.params, "api_key": "wrong"}
    with pytest.raises(LlmError, match="Check the API key"):
        await Asker(service, tmp_path, model=model, params=params).all(QUESTIONS)


@ALL
async def test_a_busy_service_is_asked_again(model, service, tmp_path):
    create = "POST /batch/jobs" if model == "mistral/judge" else "POST /batches"
    service.failures = [("POST /files", 500), (create, 429)]
    assert texts(await Asker(service, tmp_path, model=model).all(QUESTIONS)) == ANSWERS
    assert (len(service.batches), service.calls.count(create)) == (1, 2)


@ALL
async def test_a_batch_whose_creation_was_broken_off_is_found_again_where_it_can_be(
    model, service, tmp_path, monkeypatch
):
    monkeypatch.setattr("gavel.llm.batch_cassette._GRACE_SECONDS", 0.0)
    if model == "xai/judge":
        for _ in range(XaiService.page + 1):  # the batch is on the second page
            await Asker(service, tmp_path / str(_), model=model).all([f"other {_}"])
    created = len(service.batches)
    broken: list[str] = []

    def breaks(method: str, path: str) -> None:
        if method == "POST" and path in ("/batches", "/batch/jobs") and not broken:
            broken.append(path)
            raise ConnectionAbortedError

    service.before_answer = breaks
    asker = Asker(service, tmp_path, model=model)
    if model == "mistral/judge":
        with pytest.raises(LlmError, match="not known whether a batch of 20 requests to mistral/judge was created"):
            await asker.all(QUESTIONS)
        asker.job.close()
        asker = Asker(service, tmp_path, model=model)
    assert texts(await asker.all(QUESTIONS)) == ANSWERS
    assert len(service.batches) - created == (2 if model == "mistral/judge" else 1)


@pytest.mark.parametrize(
    "model", ["anthropic/claude-sonnet-4-5", "vertex_ai/gemini-2.5-pro", "bedrock/amazon.nova-pro-v1:0", "gemini/g"]
)
def test_a_vendor_without_batches_is_refused_and_those_with_batches_are_named(model):
    with pytest.raises(LlmError) as refused:
        vendor_of(model, {})
    assert "cannot be asked in batches" in refused.value.message
    for provider in ("openai", "azure", "mistral", "xai", "hosted_vllm", "litellm_proxy"):
        assert provider in refused.value.remedy


@pytest.mark.parametrize("model", ["hosted_vllm/judge", "litellm_proxy/judge"])
async def test_an_own_server_without_an_address_is_asked_for_it(model, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-this-server")
    service = BatchService()
    try:
        with pytest.raises(LlmError, match="needs the address"):
            await Asker(service, tmp_path, model=model, params={}).all(QUESTIONS)
    finally:
        service.close()
    assert service.calls == []


def test_a_price_in_a_batch_is_the_share_that_the_vendor_takes():
    prices = dict.fromkeys(("openai/m", "mistral/m", "xai/m", "hosted_vllm/m"), (2.0, 8.0))
    shares = {name: batch_price(name, prices) for name in prices}
    assert shares == {
        "openai/m": (1.0, 4.0),
        "mistral/m": (1.0, 4.0),
        "xai/m": (1.6, 6.4),
        "hosted_vllm/m": (2.0, 8.0),
    }
