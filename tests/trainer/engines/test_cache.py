"""Keys, values and states of slots are those of their ids, however they were made."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.engines.kv_cache import COMMON_CONTEXT, Slots, SlotView, StateSlots, shared_context, slots_that_fit
from tests.trainer.families import BY_NAME

pytestmark = pytest.mark.slow


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


def test_a_state_is_continued_whole_or_not_at_all():
    slots = StateSlots(2, 64)
    whole = np.array([1, 2, 3])
    slot = slots.take(whole, slots.shared_prefixes(whole, 0), 0)
    assert slot is not None
    slots.lengths[slot] = 3
    longer = np.array([1, 2, 3, 4])
    assert slots.shared_prefixes(longer, 0).tolist() == [0, 0]  # it is busy
    slots.release(slot)
    assert slots.shared_prefixes(longer, 0)[slot] == 3
    assert slots.shared_prefixes(longer, 1)[slot] == 0  # another adapter
    assert slots.shared_prefixes(whole, 0)[slot] == 0
    assert slots.shared_prefixes(np.array([1, 2, 9, 9]), 0)[slot] == 0
    assert slots.take(longer, slots.shared_prefixes(longer, 0), 0) == slot
    assert slots.lengths[slot] == 3


def test_the_slots_that_fit_are_measured_on_the_models_own_caches(monkeypatch):
    hybrid = BY_NAME["Qwen3.5"].model()
    keys = 2 * 2 * 8 * 4  # keys and values of 2 heads of 8 float32 numbers, in one of two layers
    state = 4 * (4 * 8 * 8) + 4 * (32 + 2 * 16) * 4  # recurrent, and convolution over 4 tokens
    monkeypatch.setattr(DeviceMemory, "free", lambda self: 4 * 10 * (state + 100 * keys))
    assert slots_that_fit(hybrid, 100) == 10
