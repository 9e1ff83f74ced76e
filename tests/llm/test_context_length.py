"""The context of an endpoint, and what its refusals teach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.prompt_cut import ContextLength


def test_the_reply_takes_half_of_a_short_context_at_most():
    assert ContextLength("short", 2000).room(5000) == int(1000 / 1.2)
    assert ContextLength("long", 120_000).room(0) == 100_000


@pytest.mark.parametrize(("limit", "tokens"), [(8192, 8192), (None, 6000 + 1000), (500_000, 6000 + 1000)])
def test_a_refusal_lowers_it_for_all_who_ask_the_endpoint(limit: int | None, tokens: int):
    one, other = (ContextLength(("refused", limit), 128_000) for _ in range(2))
    one.shrink(one.room(1000), 10_000, 1000, limit)
    assert other.tokens == tokens


def test_a_second_refusal_of_the_same_prompt_lowers_it_no_further():
    length = ContextLength("twice", 128_000)
    room = length.room(1000)
    length.shrink(room, 10_000, 1000, None)
    lowered = length.tokens
    length.shrink(room, 10_000, 1000, None)
    assert length.tokens == lowered


@given(st.integers(1000, 1_000_000), st.integers(0, 10_000), st.integers(100, 1_000_000))
def test_the_room_never_grows_by_a_refusal_of_what_filled_it(assumed: int, reply: int, limit: int):
    length = ContextLength((assumed, reply, limit), assumed)
    room = length.room(reply)
    length.shrink(room, room, reply, limit)
    assert length.room(reply) <= room
