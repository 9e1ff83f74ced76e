"""Placement is pure: these properties hold for every sequence of requests."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.engines.engine_pool import FEWEST_MORE, PoolSchedule, much_busier

SAMPLERS = 4
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)
events = st.lists(
    st.one_of(
        st.tuples(st.just("place"), tokens, st.sets(st.integers(0, SAMPLERS - 1), min_size=1)),
        st.tuples(st.just("end"), st.integers(0, 50), tokens),
        st.tuples(st.just("forget"), st.integers(0, SAMPLERS - 1), st.none()),
    ),
    max_size=60,
)


@given(events)
def test_a_request_goes_where_it_may_and_never_to_one_that_is_much_busier(happened: Sequence[tuple]) -> None:
    schedule = PoolSchedule(SAMPLERS)
    running: list[tuple[int, list[int]]] = []
    for kind, given_, other in happened:
        match kind:
            case "place":
                before = list(schedule.loads)
                chosen = schedule.place(given_, 1, other)
                assert chosen in other
                assert not much_busier(before[chosen], min(before[each] for each in other))
                running.append((chosen, given_))
            case "end" if running:
                sampler, prompt = running.pop(given_ % len(running))
                schedule.hold(sampler, prompt, other, 1)
                schedule.done(sampler)
            case "forget":
                schedule.forget(given_)
        assert schedule.loads == [sum(at == each for at, _ in running) for each in range(SAMPLERS)]


@given(st.lists(tokens, max_size=30), st.integers(1, SAMPLERS))
def test_new_conversations_are_spread_evenly(prompts: list[list[int]], samplers: int) -> None:
    schedule = PoolSchedule(samplers)
    for prompt in prompts:
        schedule.place(prompt, 0, range(samplers))
    assert max(schedule.loads) - min(schedule.loads) <= 1


@given(tokens, tokens, tokens, st.integers(0, SAMPLERS - 1), st.integers(0, 3))
def test_a_conversation_returns_to_its_sampler_until_that_is_much_busier(
    prompt: list[int], reply: list[int], news: list[int], holder: int, others: int
) -> None:
    schedule = PoolSchedule(SAMPLERS)
    schedule.hold(holder, prompt, reply, 1)
    for _ in range(others):
        schedule.place([9], 1, range(SAMPLERS))
    placed = 0
    while not much_busier(schedule.loads[holder], min(schedule.loads)):
        assert schedule.place([*prompt, *reply, *news], 1, range(SAMPLERS)) == holder
        placed += 1
    assert placed >= FEWEST_MORE - others
    assert schedule.place([*prompt, *reply, *news], 1, range(SAMPLERS)) != holder


@given(tokens, tokens, tokens)
def test_the_longest_conversation_decides(prompt: list[int], reply: list[int], more: list[int]) -> None:
    schedule = PoolSchedule(3)
    schedule.hold(1, prompt, reply, 1)
    schedule.hold(2, [*prompt, *reply], more, 1)
    assert schedule.place([*prompt, *reply, *more], 1, range(3)) == 2
    schedule.forget(2)
    assert schedule.place(prompt, 1, range(3)) == 1, "an earlier turn that was rewritten goes on from its prompt"


def test_what_was_computed_with_another_adapter_is_worth_nothing() -> None:
    schedule = PoolSchedule(2)
    schedule.hold(1, [1, 2], [3], version=1)
    assert schedule.place([1, 2, 3], 2, range(2)) == 0


def test_conversations_that_went_on_longest_ago_are_forgotten() -> None:
    schedule = PoolSchedule(2, kept=4)
    for first in range(3):
        schedule.hold(1, [first], [7], 1)
    assert schedule.place([0, 7], 1, range(2)) == 0
    assert schedule.place([2, 7], 1, range(2)) == 1


def test_nothing_to_choose_among_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        PoolSchedule(2).place([1], 1, [])
