import asyncio
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.errors import LlmError, NotAskedError
from gavel.llm.rate_limits import MINUTE, Concurrency, Limits, MinuteWindow

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
        window.correct(sent, actual)
        left.append((now, actual))
    recent = sum(tokens for at, tokens in left if at > now - MINUTE)
    assert window.seconds_until(now, 10_000 - recent, limits) == 0
    if recent:
        assert window.seconds_until(now, 10_000 - recent + 1, limits) > 0


def test_a_correction_that_comes_after_the_minute_changes_nothing():
    limits, window = Limits(tokens_per_minute=100), MinuteWindow()
    sent = window.add(0.0, 10)
    assert window.seconds_until(61.0, 100, limits) == 0
    window.correct(sent, 90)
    assert window.seconds_until(61.0, 100, limits) == 0


def test_a_request_that_no_minute_has_room_for_is_refused():
    with pytest.raises(NotAskedError, match="does not fit in 100 tokens per minute"):
        MinuteWindow().seconds_until(0.0, 101, Limits(tokens_per_minute=100))


@pytest.mark.parametrize(
    "limits", [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"deadline": 0}, {"timeout": nan}]
)
def test_limits_that_let_nothing_through_are_refused(limits):
    with pytest.raises(LlmError):
        Limits(**limits)


async def test_calls_run_in_the_order_of_asking():
    concurrency, ran = Concurrency(), []

    async def run(name: str) -> None:
        await concurrency.acquire(name, 2)
        ran.append(name)
        await asyncio.sleep(0)
        concurrency.release(name, 2)

    await asyncio.gather(*(run(name) for name in "abcdefg"))
    assert ran == list("abcdefg")


async def test_the_smallest_limit_of_the_calls_that_wait_or_run_holds_for_all():
    concurrency, running, most, go = Concurrency(), set[str](), dict[str, int](), asyncio.Event()

    async def run(name: str, limit: int) -> None:
        await concurrency.acquire(name, limit)
        running.add(name)
        most[name] = len(running)
        await go.wait()
        await asyncio.sleep(0)
        running.remove(name)
        concurrency.release(name, limit)

    first = [asyncio.create_task(run(f"large {n}", 3)) for n in range(6)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(running) == 3
    small = [asyncio.create_task(run(f"small {n}", 1)) for n in range(2)]
    last = [asyncio.create_task(run(f"last {n}", 3)) for n in range(3)]
    go.set()
    await asyncio.wait_for(asyncio.gather(*first, *small, *last), 5)
    assert [most[f"small {n}"] for n in range(2)] == [1, 1]
    assert most["last 2"] == 3


async def test_a_call_that_is_cancelled_while_it_waits_leaves_its_share_to_the_next():
    concurrency = Concurrency()
    await concurrency.acquire("first", 1)
    waiting, served, behind = (asyncio.create_task(concurrency.acquire(name, 1)) for name in "abc")
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    concurrency.release("first", 1)
    served.cancel()  # it was given the share, and has not yet noticed
    await asyncio.wait_for(behind, 5)
    assert served.cancelled()


async def test_a_call_with_a_small_limit_that_is_cancelled_no_longer_holds_others_back():
    concurrency = Concurrency()
    await concurrency.acquire("first", 2)
    small = asyncio.create_task(concurrency.acquire("small", 1))
    await asyncio.sleep(0)
    behind = asyncio.create_task(concurrency.acquire("behind", 2))
    await asyncio.sleep(0)
    assert not behind.done()
    small.cancel()
    await asyncio.wait_for(behind, 5)
