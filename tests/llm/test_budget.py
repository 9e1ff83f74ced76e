"""What calls cost, budgets that they share, ledgers of one piece of work, and limits of how much is asked at once."""

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.errors import GavelError
from gavel.llm.budget import Budget, Ledger, cost, cost_in_words, noted_calls, prices_from_environment
from gavel.llm.client import ChatAgent, Client
from gavel.llm.errors import BudgetError, LlmError, UnknownModelError
from gavel.llm.rate_limits import MINUTE, Limits, MinuteWindow, SentRequest
from gavel.llm.types import CachedPrefix, Message, Reply, Schema, Usage
from tests.endpoint import Answer, Endpoint, fails, says
from tests.limits import HANG_SECONDS

SIZE = 100, 100


async def test_calls_run_together_while_the_most_they_can_come_to_fits_then_alone_then_not():
    budget = Budget(max_tokens=500)
    together = [await budget.reserve("m", None, *SIZE), await budget.reserve("m", None, *SIZE)]
    alone = asyncio.create_task(budget.reserve("m", None, *SIZE))
    await asyncio.sleep(0)
    assert not alone.done()
    for reservation in together:
        budget.settle(reservation, None, 100, 50)
    budget.settle(await alone, None, 100, 70)
    with pytest.raises(BudgetError, match=r"470 of 500 tokens; a call to m needs about 95 tokens"):
        await budget.reserve("m", None, *SIZE)
    assert budget.spent_tokens == 470


@pytest.mark.parametrize("limits", [{"max_cost_usd": 0}, {"max_cost_usd": float("nan")}, {"max_tokens": -1}])
def test_a_budget_of_nothing_is_refused(limits):
    with pytest.raises(LlmError, match="above 0"):
        Budget(**limits)


@pytest.mark.parametrize(
    ("usd", "calls", "unknown", "words"),
    [
        (0.0, 0, 0, "0.00 USD"),
        (0.00132, 1, 0, "0.0013 USD"),
        (0.42, 9, 1, "≥ 0.42 USD, 1 call unknown"),
        (0.0, 3, 3, "cost unknown"),
    ],
)
def test_a_cost_that_is_not_known_is_never_told_as_if_it_were(usd, calls, unknown, words):
    assert cost_in_words(usd, calls, unknown) == words


async def spend(budget: Budget, workers: int, seed: int, longest: int, *, capped: bool) -> int:
    """What the calls in flight came to when the last call of these workers was let in."""
    dice, running, excess = random.Random(seed), dict[object, int](), 0

    async def work() -> None:
        nonlocal excess
        while True:
            try:
                reservation = await budget.reserve("m", None, 100, 2 * longest, can_be_capped=capped)
            except BudgetError:
                return
            completion = min(dice.randrange(1, longest), reservation.cap or longest)
            running[reservation.most, id(reservation)] = 60 + completion
            excess = max(excess, sum(running.values()))
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            del running[reservation.most, id(reservation)]
            budget.settle(reservation, None, 60, completion)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work())
    return excess


@pytest.mark.parametrize("capped", [False, True])
@given(st.integers(300, 200_000), st.integers(1, 12), st.integers(0, 99), st.sampled_from([20, 100, 20_000]))
def test_a_budget_is_passed_by_the_calls_in_flight_at_most_and_never_by_capped_ones(
    capped, limit, workers, seed, longest
):
    budget = Budget(max_tokens=limit)
    excess = asyncio.run(spend(budget, workers, seed, longest, capped=capped))
    assert budget.spent_tokens <= limit + (60 - 25 if capped else excess)  # a prompt may be longer than its estimate
    assert budget._in_flight == []


MESSAGES: list[Message] = [{"role": "user", "content": "Hello?"}]
SCHEMA: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}


async def ask(endpoint: Endpoint) -> Reply:
    return await Client("openai/judge", endpoint.params, prices={"openai/judge": (1.0, 2.0)}).ask(MESSAGES, SCHEMA)


async def test_costs_of_concurrent_tasks_are_added_up_and_those_of_others_are_not(endpoint: Endpoint):
    endpoint.script = [lambda _: says("{}", USAGE)]
    with noted_calls() as outer:
        with noted_calls() as ledger:
            await asyncio.gather(*(ask(endpoint) for _ in range(5)))
        await ask(endpoint)
    await ask(endpoint)
    assert ledger.usd == pytest.approx(5 * 200e-6)
    assert outer.usd == pytest.approx(200e-6)
    assert ledger.unpriced == outer.unpriced == 0


async def test_a_refused_request_is_free_and_one_that_was_cut_off_may_be_charged_for(endpoint: Endpoint):
    endpoint.script = [fails(401)]
    with noted_calls() as ledger:
        with pytest.raises(LlmError):
            await ask(endpoint)
        assert (ledger.usd, ledger.unpriced) == (0, 0)
        endpoint.script = [endpoint.silence]
        asking = asyncio.create_task(ask(endpoint))
        async with asyncio.timeout(HANG_SECONDS):
            while len(endpoint.requests) < 2:  # noqa: ASYNC110 - a server in a thread
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
    assert (ledger.usd, ledger.unpriced) == (0, 1)


async def test_a_closed_ledger_lets_what_is_in_flight_end_and_nothing_more_be_sent():
    ledger = Ledger()
    await ledger.begin()
    closing = asyncio.create_task(ledger.close())
    await asyncio.sleep(0)
    late = asyncio.create_task(ledger.begin())
    await asyncio.sleep(0.01)
    assert not closing.done()
    ledger.end(0.5)
    await closing
    assert not late.done()
    late.cancel()
    assert ledger.usd == 0.5
    await Ledger().close()


OF_A_TURN = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}


async def test_a_turn_that_fails_for_now_is_asked_for_again_and_turns_end_with_the_budget(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_BASE", f"{endpoint.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/agent": [1, 2]}')
    endpoint.script = [fails(503), fails(429), lambda _: says("Hello!", OF_A_TURN)]
    agent = ChatAgent("openai/agent", budget := Budget(0.005))
    turn = await agent.turn(MESSAGES, [], max_completion_tokens=1000)
    assert turn.choices[0].message.content == "Hello!"
    assert agent.cost_usd == pytest.approx(0.002)
    assert len(endpoint.requests) == 3

    async def talk() -> None:
        while len(endpoint.requests) < 20:
            await agent.turn(MESSAGES, [], max_completion_tokens=1000)

    with pytest.raises(BudgetError):
        await talk()
    turns = len(endpoint.requests) - 2
    assert 1 <= turns <= 3
    assert budget.spent_usd == pytest.approx(0.002 * turns)


def test_a_judge_that_goes_by_rules_is_no_agent():
    with pytest.raises(UnknownModelError, match="cannot act as an agent"):
        ChatAgent("gavel/stand-in")


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 100)), max_size=60),  # pause and estimate
    st.none() | st.integers(1, 5),
    st.none() | st.integers(100, 300),
)
def test_no_sixty_seconds_hold_more_than_is_allowed(requests, most_requests, most_tokens):
    limits = Limits(requests_per_minute=most_requests, tokens_per_minute=most_tokens)
    window, now, left = MinuteWindow(), 0.0, []
    for pause, estimate in requests:
        now += pause
        while not isinstance(sent := window.send(now, estimate, limits), SentRequest):
            assert 0 < sent <= MINUTE + 1e-6
            now = max(now + sent, now + 1e-9)
        left.append((sent.at, estimate))
    for start, _ in left:
        within = [tokens for at, tokens in left if start <= at < start + MINUTE - 1e-6]
        assert most_requests is None or len(within) <= most_requests
        assert most_tokens is None or sum(within) <= most_tokens


async def test_calls_run_in_the_order_of_asking_and_the_smallest_limit_holds_for_all():
    running, most, ran = 0, 0, list[str]()

    async def model(messages, schema) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        ran.append(messages[0]["content"])
        await asyncio.sleep(0)
        running -= 1
        return "hi"

    clients = [Client(model, limits=Limits(concurrency=limit)) for limit in (2, 5, 3)]
    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(clients[number % 3].ask([{"role": "user", "content": str(number)}], {}))
    assert (most, ran) == (2, [str(number) for number in range(12)])


async def test_a_call_that_is_cancelled_leaves_its_share_to_the_next():
    asked, silence = asyncio.Event(), asyncio.Event()

    async def model(messages, schema) -> str:
        asked.set()
        await silence.wait()
        return "hi"

    client = Client(model, limits=Limits(concurrency=1))
    running, waiting, behind = (asyncio.create_task(client.ask([], {})) for _ in range(3))
    await asked.wait()
    waiting.cancel()
    running.cancel()
    silence.set()
    assert (await asyncio.wait_for(behind, HANG_SECONDS)).text == "hi"


def test_what_is_written_to_a_cache_costs_a_quarter_more_as_claude_takes():
    model, usage = "anthropic/claude-sonnet-4-5", Usage(1000, 0, written_prompt_tokens=1000)
    assert cost(model, usage, {model: (4.0, 8.0, 0.4)}) == pytest.approx(0.005)
    assert cost(model, usage, {}) is None


@pytest.mark.parametrize("text", ["2", "{", '{"openai/o3": 2}', '{"m": [-1, 2]}', '{"m": [NaN, 2]}'])
def test_prices_that_cannot_be_read_are_an_error(monkeypatch, text):
    monkeypatch.setenv("GAVEL_PRICES", text)
    with pytest.raises(GavelError, match="GAVEL_PRICES"):
        prices_from_environment()
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/o3": [2, 8]}')
    assert prices_from_environment() == {"openai/o3": (2.0, 8.0)}


CACHED = {"prompt_tokens_details": {"cached_tokens": 1000}}
REASONED = {"completion_tokens_details": {"reasoning_tokens": 300}}


@pytest.mark.parametrize(
    ("prices", "told", "tokens", "read", "usd"),
    [
        ({}, CACHED, 50, (1000, 50), (1000 * 0.25 + 1000 * 0.025 + 50 * 2) / 1e6),
        ((1, 2, 0.1), CACHED, 50, (1000, 50), 0.0012),
        ((1, 2), CACHED, 50, (1000, 50), 0.0021),
        *(
            (prices, REASONED, tokens, (0, 350), (2000 * 0.25 + 350 * 2) / 1e6)
            for prices in ({}, (0.25, 2))  # LiteLLM's, and own ones
            for tokens in (50, 350)  # reported apart, and with the others
        ),
    ],
)
async def test_what_was_cached_costs_less_and_reasoning_that_is_reported_apart_is_paid_for(
    endpoint, prices, told, tokens, read, usd
):
    usage = {"prompt_tokens": 2000, "completion_tokens": tokens, "total_tokens": 2000 + read[1], **told}
    endpoint.script = [lambda _: says("{}", usage)]
    own = {"openai/gpt-5-mini": prices} if prices else {}
    reply = await Client("openai/gpt-5-mini", endpoint.params, prices=own).ask(MESSAGES, {"type": "object"})
    assert (reply.prompt_tokens, reply.cached_prompt_tokens, reply.completion_tokens) == (2000, *read)
    assert reply.cost_usd == pytest.approx(usd)


async def test_a_breakpoint_reaches_claude_and_its_cache_is_counted(endpoint):
    usage = {"input_tokens": 100, "output_tokens": 10}
    usage |= {"cache_read_input_tokens": 2000, "cache_creation_input_tokens": 400}
    body = {"id": "1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}
    endpoint.script = [lambda _: Answer({**body, "content": [{"type": "text", "text": "{}"}], "usage": usage})]
    client = Client("anthropic/claude-sonnet-4-5", endpoint.params | {"api_base": endpoint.url})
    prompt = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "what all share, and the rest"}]
    reply = await client.ask(prompt, SCHEMA, prefix=CachedPrefix(1, len("what all share")))
    [request] = endpoint.requests
    shared, rest = request["messages"][0]["content"]
    assert (shared["text"], rest["text"]) == ("what all share", ", and the rest")
    assert shared["cache_control"]["type"] == "ephemeral"
    assert json.dumps(request).count("cache_control") == 1
    assert (reply.prompt_tokens, reply.cached_prompt_tokens) == (2500, 2000)
    assert reply.cost_usd == pytest.approx((100 * 3 + 2000 * 0.3 + 400 * 3.75 + 10 * 15) / 1e6)
