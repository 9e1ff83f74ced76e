import asyncio
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.client import Client
from gavel.llm.errors import LlmError
from gavel.llm.rate_limits import MINUTE, Limits, MinuteWindow
from tests.limits import HANG_SECONDS

_REQUESTS = st.lists(
    st.tuples(st.floats(0, 50), st.integers(0, 100), st.integers(0, 100)),  # pause, estimate, actual
    max_size=60,
)


@given(_REQUESTS, st.none() | st.integers(1, 5), st.none() | st.integers(100, 300))
def test_no_sixty_seconds_hold_more_than_is_allowed(requests, most_requests, most_tokens):
    limits = Limits(requests_per_minute=most_requests, tokens_per_minute=most_tokens)
    window, now, left = MinuteWindow(), 0.0, []
    for pause, estimate, _ in requests:
        now += pause
        while wait := window.seconds_until(now, estimate, limits):
            assert 0 < wait <= MINUTE + 1e-6
            now = max(now + wait, now + 1e-9)
        left.append((window.add(now, estimate).at, estimate))
    for start, _ in left:
        within = [tokens for at, tokens in left if start <= at < start + MINUTE - 1e-6]
        assert most_requests is None or len(within) <= most_requests
        assert most_tokens is None or sum(within) <= most_tokens


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100), st.integers(0, 100)), max_size=60))
def test_what_a_request_came_to_counts_from_then_on(requests):
    limits = Limits(tokens_per_minute=10_000)
    window, now, left = MinuteWindow(), 0.0, []
    for pause, estimate, actual in requests:
        now += pause
        assert window.seconds_until(now, estimate, limits) == 0
        sent = window.add(now, estimate)
        sent.tokens = actual
        left.append((now, actual))
    recent = sum(tokens for at, tokens in left if at > now - MINUTE)
    assert window.seconds_until(now, 10_000 - recent, limits) == 0
    if recent:
        assert window.seconds_until(now, 10_000 - recent + 1, limits) > 0


@pytest.mark.parametrize(
    "limits", [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"deadline": 0}, {"timeout": nan}]
)
def test_limits_that_let_nothing_through_are_refused(limits):
    with pytest.raises(LlmError):
        Limits(**limits)


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
