import asyncio
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.errors import LlmError, NotAskedError
from gavel.llm.rate_limits import MINUTE, Limits, Minute, Places
from tests.limits import HANG_SECONDS

_REQUESTS = st.lists(
    st.tuples(st.floats(0, 50), st.integers(0, 100), st.integers(0, 100)),  # pause, estimate, actual
    max_size=60,
)


@given(_REQUESTS, st.none() | st.integers(1, 5), st.none() | st.integers(100, 300))
def test_no_sixty_seconds_hold_more_than_is_allowed(requests, most_requests, most_tokens):
    limits = Limits(requests_per_minute=most_requests, tokens_per_minute=most_tokens)
    minute, now, left = Minute(), 0.0, []
    for pause, estimate, _ in requests:
        now += pause
        while wait := minute.wait(now, estimate, limits):
            assert 0 < wait <= MINUTE + 1e-6
            now = max(now + wait, now + 1e-9)
        left.append((minute.leave(now, estimate).at, estimate))
    for start, _ in left:
        within = [tokens for at, tokens in left if start <= at < start + MINUTE - 1e-6]
        assert most_requests is None or len(within) <= most_requests
        assert most_tokens is None or sum(within) <= most_tokens


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100), st.integers(0, 100)), max_size=60))
def test_what_a_request_came_to_counts_from_then_on(requests):
    limits = Limits(tokens_per_minute=10_000)
    minute, now, left = Minute(), 0.0, []
    for pause, estimate, actual in requests:
        now += pause
        assert minute.wait(now, estimate, limits) == 0
        sent = minute.leave(now, estimate)
        minute.correct(sent, actual)
        left.append((now, actual))
    recent = sum(tokens for at, tokens in left if at > now - MINUTE)
    assert minute.wait(now, 10_000 - recent, limits) == 0
    if recent:
        assert minute.wait(now, 10_000 - recent + 1, limits) > 0


def test_a_correction_that_comes_after_the_minute_changes_nothing():
    limits, minute = Limits(tokens_per_minute=100), Minute()
    sent = minute.leave(0.0, 10)
    assert minute.wait(61.0, 100, limits) == 0
    minute.correct(sent, 90)
    assert minute.wait(61.0, 100, limits) == 0


def test_a_request_that_no_minute_has_room_for_is_refused():
    with pytest.raises(NotAskedError, match="does not fit in 100 tokens per minute"):
        Minute().wait(0.0, 101, Limits(tokens_per_minute=100))


@pytest.mark.parametrize(
    "limits", [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"deadline": 0}, {"timeout": nan}]
)
def test_limits_that_let_nothing_through_are_refused(limits):
    with pytest.raises(LlmError):
        Limits(**limits)


async def test_places_are_given_in_the_order_of_asking_and_each_asker_has_its_own_limit():
    places, came = Places(), []

    async def come(name: str, limit: int) -> None:
        await places.take(limit)
        came.append(name)

    await places.take(2)
    tasks = [asyncio.create_task(come(name, limit)) for name, limit in [("a", 2), ("small", 1), ("b", 3)]]
    await asyncio.sleep(0)
    assert came == ["a"]
    places.give_back()
    await asyncio.sleep(0)
    assert came == ["a"]
    places.give_back()
    await asyncio.gather(*tasks)
    assert came == ["a", "small", "b"]


async def test_a_place_is_not_lost_by_those_who_stop_waiting():
    places = Places()
    await places.take(1)
    waiting, served, behind = (asyncio.create_task(places.take(1)) for _ in range(3))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    places.give_back()
    served.cancel()  # its turn has come, but it has not yet noticed
    await asyncio.wait_for(behind, HANG_SECONDS)
    assert served.cancelled()
