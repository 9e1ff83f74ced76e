"""A slot's keys and values are those of its ids, whatever was taken, copied, released and widened."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.engines.kv_cache import COMMON_CONTEXT, Slots, SlotView, shared_context

MAX_CONTEXT = 600
short = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def prefix_marks(ids, adapter: int = 0) -> list[float]:
    """A number for each position that depends on the adapter and all ids up to there, as keys and values do."""
    marks = itertools.accumulate((float(token) for token in ids), lambda mark, token: (3 * mark + token + 1) % 9973)
    return [mark + 10_000.0 * int(adapter) for mark in marks]


def compute(slots: Slots, slot: int, ids: np.ndarray) -> None:
    """What a forward pass does: stores what is new, through the view that a model gets."""
    start = int(slots.lengths[slot])
    new = torch.tensor(prefix_marks(ids, slots.adapters[slot])[start:])[None, None, :, None]
    positions = torch.arange(start, len(ids))[None]
    view = SlotView(slots, np.array([slot]), positions, len(ids))
    keys, values = view.update(new, -new, layer=0)
    assert keys.shape == values.shape == (1, 1, len(ids), 1)
    slots.lengths[slot] = len(ids)


def take(slots: Slots, ids: np.ndarray, adapter: int = 0) -> int | None:
    return slots.take(ids, slots.shared_prefixes(ids, adapter), adapter)


def fill(slots: Slots, ids: list[int]) -> int | None:
    array = np.array(ids)
    slots.reserve(len(ids))
    slot = take(slots, array)
    if slot is not None:
        compute(slots, slot, array)
    return slot


def assert_consistent(slots: Slots) -> None:
    assert slots.capacity < MAX_CONTEXT + 512
    assert ((slots.lengths >= 0) & (slots.lengths <= slots.capacity)).all()
    for slot in range(slots.count):
        length = int(slots.lengths[slot])
        marks = prefix_marks(slots.ids[slot, :length], slots.adapters[slot])
        for keys, values in slots.layers:
            assert keys.shape[2] == slots.capacity
            assert keys[slot, 0, :length, 0].tolist() == marks
            assert (-values[slot, 0, :length, 0]).tolist() == marks


adapter = st.integers(0, 1)
operation = st.one_of(
    st.tuples(st.just("begin"), adapter, short),
    st.tuples(st.just("go on"), adapter, short, st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("reserve"), st.integers(1, MAX_CONTEXT)),
    st.tuples(st.just("forget"), adapter),
)


@given(st.integers(1, 4), st.lists(operation, max_size=25))
def test_any_sequence_of_operations_leaves_slots_consistent_and_within_bounds(count, operations):
    slots = Slots(count, MAX_CONTEXT)
    busy: list[int] = []
    said: list[list[int]] = [[0]]
    for step in operations:
        match step:
            case (("begin" | "go on"), number, ids, *turn):
                whole = [*said[turn[0] % len(said)], *ids] if turn else ids
                array = np.array(whole)
                best = int(np.minimum(slots.shared_prefixes(array, number), len(whole) - 1).max())
                slots.reserve(len(whole))
                slot = take(slots, array, number)
                assert (slot is None) == (len(busy) == count)
                if slot is not None:
                    assert slot not in busy
                    assert slots.busy[slot]
                    assert slots.lengths[slot] == best < len(whole)
                    compute(slots, slot, array)
                    busy.append(slot)
                    said.append(whole)
            case ("release", which):
                if busy:
                    slots.release(busy.pop(which % len(busy)))
            case ("reserve", tokens):
                slots.reserve(tokens)
                assert slots.capacity >= tokens
            case ("forget", number):
                others = np.where(slots.adapters == number, 0, slots.lengths)
                slots.forget(number)
                assert slots.lengths.tolist() == others.tolist()
        assert sorted(busy) == np.flatnonzero(slots.busy).tolist()
        assert_consistent(slots)


@given(st.lists(short, min_size=1, max_size=4), short)
def test_shared_prefixes_are_counted_token_by_token(held, ids):
    slots = Slots(4, MAX_CONTEXT)
    for conversation in held:
        fill(slots, conversation)
    expected = []
    for slot in range(4):
        own = slots.ids[slot, : slots.lengths[slot]].tolist()
        expected.append(len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, ids, strict=False))]))
    assert slots.shared_prefixes(np.array(ids), 0).tolist() == expected
    assert not slots.shared_prefixes(np.array(ids), 1).any(), "another adapter has computed none of it"


def test_a_conversation_goes_on_in_its_own_slot():
    slots = Slots(3, MAX_CONTEXT)
    slot = fill(slots, [1, 2, 3])
    fill(slots, [1, 2, 4])
    assert slot is not None
    slots.release(slot)
    assert take(slots, np.array([1, 2, 3, 5])) == slot
    assert slots.lengths[slot] == 3


def test_a_busy_conversation_is_copied_not_taken():
    slots = Slots(2, MAX_CONTEXT)
    first = fill(slots, [1, 2, 3])
    second = take(slots, np.array([1, 2, 9]))
    assert first is not None
    assert second not in (None, first)
    assert slots.lengths.tolist()[second] == 2
    assert slots.ids[first, :3].tolist() == [1, 2, 3]
    assert_consistent(slots)


def test_the_least_recently_used_slot_is_given_away():
    slots = Slots(3, MAX_CONTEXT)
    taken = [fill(slots, [token]) for token in (1, 2, 3)]
    for slot in (taken[1], taken[0], taken[2]):
        assert slot is not None
        slots.release(slot)
    assert take(slots, np.array([9])) == taken[1]


def test_the_same_prompt_again_leaves_one_token_to_compute():
    slots = Slots(1, MAX_CONTEXT)
    slots.release(fill(slots, [1, 2, 3]) or 0)
    assert take(slots, np.array([1, 2, 3])) == 0
    assert slots.lengths[0] == 2


def test_memory_grows_as_contexts_do_and_stops_at_the_bound():
    slots = Slots(2, MAX_CONTEXT)
    fill(slots, [1, 2])
    assert slots.capacity == 512
    slots.reserve(513)
    assert slots.capacity == 1024, "whole blocks"
    slots.reserve(MAX_CONTEXT)
    assert slots.capacity == 1024
    assert_consistent(slots)


def test_rows_that_are_not_neighbours_see_their_own_keys():
    slots = Slots(4, MAX_CONTEXT)
    for token in range(4):
        fill(slots, [token, token])
    positions = torch.full((2, 1), 2)
    keys, _ = SlotView(slots, np.array([3, 1]), positions, 3).update(
        torch.tensor([7.0, 8.0])[:, None, None, None], torch.zeros(2, 1, 1, 1), layer=0
    )
    assert keys[:, 0, :, 0].tolist() == [[*prefix_marks([3, 3]), 7.0], [*prefix_marks([1, 1]), 8.0]]


@given(
    share=st.integers(0, 10**11),
    most=st.integers(16, 200_000),
    slots=st.integers(1, 256),
    per_token=st.integers(1, 10**6),
)
def test_a_context_that_nobody_asked_for_is_the_models_as_far_as_memory_goes(share, most, slots, per_token):
    context = shared_context(share, most, slots, most * per_token, "cpu")
    assert min(most, COMMON_CONTEXT) <= context <= most
    if context > COMMON_CONTEXT:
        assert min(slots, 16) * context * per_token <= share
    if context < most and context % 512 == 0 and context > COMMON_CONTEXT:
        assert min(slots, 16) * (context + 513) * per_token > share
