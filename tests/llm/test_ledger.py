"""Ledgers: what a piece of work asks is noted, whatever becomes of the work."""

import asyncio

import pytest

from gavel.llm.budget import Ledger, ledger_of_this_work, noted_calls
from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from gavel.llm.types import Message, Reply, Schema
from tests.endpoint import Endpoint, fails, says
from tests.limits import HANG_SECONDS

MESSAGES: list[Message] = [{"role": "user", "content": "Hello?"}]
SCHEMA: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
PRICES = {"openai/judge": (1.0, 2.0)}
USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}


async def ask(endpoint: Endpoint) -> Reply:
    return await Client("openai/judge", endpoint.params, prices=PRICES).ask(MESSAGES, SCHEMA)


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


def test_without_a_block_nothing_is_kept():
    assert ledger_of_this_work() is not ledger_of_this_work()
