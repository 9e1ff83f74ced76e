import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.judgements import Ballot
from gavel.judge.panel.polling import Refusals
from gavel.judge.reply.verdict import Scored


class Filter:
    """A judge model that refuses by a rule, and counts what it is asked."""

    def __init__(self, refuses: Callable[[set[int]], bool]) -> None:
        self.refuses, self.asked = refuses, list[tuple[int, ...]]()

    async def __call__(self, members: tuple[int, ...]) -> Ballot:
        self.asked.append(members)
        ballot = Ballot(0, members, "m")
        if self.refuses(set(members)):
            ballot.refusal = "no"
        else:
            ballot.scores = dict.fromkeys(members, Scored(0.5))
        return ballot


async def isolate(size: int, ask: Filter) -> Refusals:
    """Asks about a whole group, and again without what was found, until it is answered or given up."""
    refusals = Refusals(size)
    for _ in range(size + 1):
        shown = tuple(member for member in range(size) if member not in refusals.members)
        if refusals.everything or len(shown) < 2 or not (await ask(shown)).refusal:
            break
        if not await refusals.narrow_down(shown, ask):
            break
    return refusals


@given(st.integers(2, 32).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=3))))
async def test_refused_members_are_found_in_a_logarithmic_number_of_prompts(case: tuple[int, set[int]]):
    size, refused = case
    ask = Filter(lambda shown: bool(shown & refused))
    refusals = await isolate(size, ask)
    assert set(refusals.members) == refused if size > len(refused) else refusals.everything
    assert len(ask.asked) <= 1 + len(refused) * (math.ceil(math.log2(size)) + 2) + 3


@pytest.mark.parametrize("size", [2, 3, 8, 10, 32])
async def test_a_model_that_refuses_everything_is_found_out_early(size: int):
    ask = Filter(lambda shown: True)
    refusals = await isolate(size, ask)
    assert refusals.everything
    assert len(ask.asked) <= 1 + math.ceil(math.log2(size)) + 3


@pytest.mark.parametrize("together", [{0, 1}, {1, 6}, {0, 7}, set(range(8))])
async def test_nobody_is_blamed_for_a_combination(together: set[int]):
    ask = Filter(lambda shown: together <= shown)
    refusals = await isolate(8, ask)
    assert not refusals.members
    assert not refusals.everything
    assert len(ask.asked) <= 6


async def test_a_call_that_waited_uses_what_another_found():
    ask = Filter(lambda shown: 5 in shown)
    refusals = await isolate(8, ask)
    asked = len(ask.asked)
    assert await refusals.narrow_down((5, 0, 1), ask)
    assert len(ask.asked) == asked


async def test_a_search_that_fails_blames_nobody():
    async def fail(members: tuple[int, ...]) -> Ballot:
        return Ballot(0, members, "m", problem="down")

    refusals = Refusals(4)
    assert not await refusals.narrow_down(range(4), fail)
    assert not refusals.members


async def test_of_a_pair_that_is_refused_the_group_is_not_given_up():
    ask = Filter(lambda shown: bool(shown & {0, 1}))
    refusals = Refusals(6)
    assert await refusals.narrow_down((0, 1), ask)
    assert not refusals.everything
    assert set(refusals.members) == {0, 1}
