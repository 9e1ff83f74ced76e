"""Batches of every vendor that LiteLLM speaks them with, through the real LiteLLM, against services on loopback."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.llm import batch as batch_module
from gavel.llm.batch import BatchCassette, Batches, batch_price, provider_of
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.client import Client
from gavel.llm.errors import BudgetError, LlmError, NotAskedError
from gavel.llm.prompt_cut import PromptCutError
from gavel.llm.types import Reply
from tests.batches import BatchService, refuses
from tests.endpoint import Answer, Request, says
from tests.llm.test_cassette import rows

pytestmark = pytest.mark.slow

VENDORS = ("openai/judge", "azure/judge", "hosted_vllm/judge", "litellm_proxy/judge")
ALL = pytest.mark.parametrize("model", VENDORS)
PRICES = dict.fromkeys(VENDORS, (2.0, 8.0))
SHARES = {"hosted_vllm/judge": 1.0, "litellm_proxy/judge": 1.0}
"""Of the price; of others one half."""
SCHEMA = {"type": "object"}
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def echo(request: Request) -> Answer:
    return says(f"good: {request['messages'][0]['content']}", USAGE)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchService]:
    monkeypatch.setattr(batch_module, "POLL_SECONDS", (0.01, 0.02))
    service = BatchService()
    service.answer = echo
    yield service
    service.close()


class Asker:
    def __init__(self, service: BatchService, directory: Path, **options) -> None:
        self.told: list[str] = []
        self.model = options.pop("model", "openai/judge")
        own = service.azure_params if self.model.startswith("azure/") else service.params
        self.params = options.pop("params", own)
        prices = {self.model: batch_price(self.model, PRICES, self.params)}
        options = {"prices": prices, "budget": Budget(), "tell": self.told.append, **options}
        self.batches = Batches(directory / "job", **options)
        cassette = BatchCassette(directory / "c.sqlite", self.batches)
        self.client = Client(self.model, self.params, prices=prices, cassette=cassette)

    async def round(self, texts: list[str]) -> list[Reply | LlmError]:
        async def ask(text: str) -> Reply | LlmError:
            try:
                return await self.client.ask([{"role": "user", "content": text}], SCHEMA, lambda r: "good" in r.text)
            except LlmError as error:
                return error

        return list(await asyncio.gather(*map(ask, texts)))

    async def all(self, texts: list[str]) -> list[Reply | LlmError]:
        with contextlib.closing(self.batches):
            while True:
                found = await self.round(texts)
                if not await self.batches.advance():
                    return found


def texts(found: list[Reply | LlmError]) -> list[str]:
    assert all(isinstance(each, Reply) for each in found), found
    return [each.text for each in found if isinstance(each, Reply)]


QUESTIONS = [f"question {number}" for number in range(20)]
ANSWERS = [f"good: {text}" for text in QUESTIONS]


@ALL
async def test_questions_are_answered_in_one_batch_at_the_price_of_the_vendor_and_kept(model, service, tmp_path):
    asker = Asker(service, tmp_path, model=model)
    found = await asker.all(QUESTIONS)
    assert texts(found) == ANSWERS
    assert (len(service.batches), set(service.asked.values())) == (1, {1})
    usd = pytest.approx(SHARES.get(model, 0.5) * (100 * 2 + 20 * 8) / 1e6)
    assert [(each.cost_usd, each.cached) for each in found] == [(usd, False)] * len(found)
    replay = Client(model, asker.params, cassette=Cassette(tmp_path / "c.sqlite", "replay"))
    assert (await replay.ask([{"role": "user", "content": "question 7"}], SCHEMA)).text == "good: question 7"


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


async def test_a_new_process_goes_on_with_the_batches_of_the_old_one(service, tmp_path):
    service.paused = True
    seen = asyncio.Event()
    first = Asker(service, tmp_path, tell=lambda line: seen.set())
    await first.round(QUESTIONS)
    waiting = asyncio.create_task(first.batches.advance())
    await seen.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    first.batches.close()
    service.paused = False
    assert texts(await Asker(service, tmp_path).all([*QUESTIONS, "one more"])) == [*ANSWERS, "good: one more"]
    assert len(service.batches) == 2
    assert set(service.asked.values()) == {1}


@pytest.mark.parametrize("arrives", [True, False])
@ALL
async def test_a_batch_whose_creation_was_broken_off_is_never_made_twice(
    model, service, tmp_path, monkeypatch, arrives
):
    monkeypatch.setattr(batch_module, "_GRACE_SECONDS", 0.0)
    for number in range(2):
        await Asker(service, tmp_path / str(number), model=model).all([f"other {number}"])
    before, lost = len(service.batches), [True]
    create = batch_module.BatchApi.create

    async def lose(api, requests: bytes, tag: str) -> str | None:
        if not lost:
            return await create(api, requests, tag)
        lost.pop()
        if arrives:
            await create(api, requests, tag)
        return None

    monkeypatch.setattr(batch_module.BatchApi, "create", lose)
    asker = Asker(service, tmp_path, model=model)
    assert texts(await asker.all(QUESTIONS)) == ANSWERS
    assert len(service.batches) - before == 1


FATES = {"expired": "", "failed": "Enqueued token limit", "cancelled": "was cancelled"}


@pytest.mark.parametrize("fate", FATES)
@ALL
async def test_the_rest_of_a_batch_that_ends_early_is_sent_once_more_at_once_or_by_the_next_command(
    model, service, tmp_path, fate
):
    service.fate, service.share = (lambda number: fate if number == 1 else "completed"), 0.5
    first = Asker(service, tmp_path, model=model)
    with pytest.raises(LlmError, match=FATES[fate]) if FATES[fate] else contextlib.nullcontext():
        assert texts(await first.all(QUESTIONS)) == ANSWERS
    assert texts(await Asker(service, tmp_path, model=model).all(QUESTIONS)) == ANSWERS
    assert set(service.asked.values()) == {1}


@ALL
async def test_failures_on_the_way_are_waited_out(model, service, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_module, "_GRACE_SECONDS", 0.1)
    service.failures = [("POST /files", 503), ("POST /batches", 429)]
    if model == "openai/judge":
        service.failures += [("POST /batches", 500), ("GET /batches", 429), ("GET /batches/batch_1", 503)]
    assert texts(await Asker(service, tmp_path, model=model).all(QUESTIONS)) == ANSWERS
    assert (len(service.batches), service.failures) == (1, [])


@ALL
async def test_a_wrong_key_is_told_with_the_remedy(model, service, tmp_path):
    asker = Asker(service, tmp_path, model=model)
    asker.params |= {"api_key": "wrong"}
    with pytest.raises(LlmError) as error:
        await asker.all(["hello"])
    assert "API key" in error.value.remedy


async def test_a_round_that_would_pass_the_budget_is_not_sent(service, tmp_path):
    asker = Asker(service, tmp_path, budget=Budget(max_cost_usd=0.01))
    with pytest.raises(BudgetError):
        await asker.all(QUESTIONS)
    assert service.calls == []
    enough = Asker(service, tmp_path, budget=Budget(max_cost_usd=1.0))
    await enough.all(QUESTIONS)
    assert enough.batches._budget.spent_usd == pytest.approx(20 * 180e-6)


@pytest.mark.parametrize("model", ["ollama/qwen3", "anthropic/claude-sonnet-4-5", "vertex_ai/gemini-2.5-pro"])
def test_a_vendor_without_batches_is_refused_and_those_with_batches_are_named(model):
    with pytest.raises(LlmError) as refused:
        provider_of(model, {})
    assert not isinstance(refused.value, NotAskedError)
    assert all(name.partition("/")[0] in refused.value.remedy for name in VENDORS)


@pytest.mark.parametrize("model", ["hosted_vllm/judge", "litellm_proxy/judge"])
async def test_an_own_server_without_an_address_is_asked_for_it(model, service, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-this-server")
    with pytest.raises(LlmError, match="needs the address"):
        await Asker(service, tmp_path, model=model, params={}).all(QUESTIONS)
    assert service.calls == []


@pytest.mark.parametrize("state", ["no database" * 100, "SQLite format 3\0 and no more"])
def test_a_directory_of_another_process_or_whose_state_cannot_be_read_is_refused_with_the_remedy(tmp_path, state):
    batches = Batches(tmp_path / "job", {}, Budget())
    with pytest.raises(LlmError, match="another process"):
        Batches(tmp_path / "job", {}, Budget())
    batches.close()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "state.sqlite").write_text(state)
    with pytest.raises(LlmError) as error:
        Batches(tmp_path / "job", {}, Budget())
    assert error.value.remedy


async def test_a_reply_to_a_part_of_the_prompt_is_paid_for_and_not_kept(service, tmp_path):
    usage = {"prompt_tokens": 4096, "completion_tokens": 20, "total_tokens": 4116}
    service.answer = lambda request: says("good", usage)
    asker = Asker(service, tmp_path)
    [found] = await asker.all(["many different words " * 4000])
    assert isinstance(found, PromptCutError)
    assert asker.batches._budget.spent_tokens == 4116
    assert rows(tmp_path / "c.sqlite") == 0
