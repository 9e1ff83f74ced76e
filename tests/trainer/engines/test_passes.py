"""Passes of one slot after the other: continued exactly where a conversation was left, begun anew otherwise."""

import numpy as np
import pytest
import torch

from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.engines.kv_cache import StateSlots, slots_that_fit
from gavel.trainer.engines.passes import SinglePasses
from gavel.trainer.engines.transformers import TransformersEngine
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import request_for
from tests.trainer.families import FAMILIES

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(0).integers(3, 800, 20)


@pytest.fixture(scope="module")
def hybrid():
    """Half of its layers keep a state."""
    return next(family for family in FAMILIES if family.name == "Qwen3.5").model()


def assert_plain(model, found: torch.Tensor, *sequences: np.ndarray) -> None:
    for logits, ids in zip(found, sequences, strict=True):
        expected = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_slots_are_continued_and_begun_anew(hybrid):
    passes = SinglePasses(hybrid, 3)
    tokens = np.zeros((2, 9), dtype=np.int64)
    tokens[0, :5], tokens[1] = IDS[:5], IDS[3:12]
    found = passes.logits(np.array([2, 0]), tokens, np.array([0, 0]), np.array([5, 9]))
    assert_plain(hybrid, found, IDS[:5], IDS[3:12])
    # The first goes on, another is idle, the second begins another sequence.
    tokens = np.zeros((3, 4), dtype=np.int64)
    tokens[0], tokens[2, :2] = IDS[5:9], IDS[:2]
    found = passes.logits(np.array([2, 1, 0]), tokens, np.array([5, 0, 0]), np.array([4, 0, 2]))
    assert_plain(hybrid, found[[0, 2]], IDS[:9], IDS[:2])


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


def test_an_engine_tells_once_that_it_is_slow(hybrid, caplog):
    engine = TransformersEngine(hybrid, slots=1, max_context=64)
    try:
        for _ in range(2):
            engine.submit(request_for(IDS.tolist(), max_tokens=2)).result(timeout=HANG_SECONDS)
    finally:
        engine.close()
    assert [record.message for record in caplog.records if "--engine vllm" in record.message] == [
        "qwen3_5 is sampled one conversation at a time, which is exact, but slow (it has layers that keep a state "
        "(linear attention, state space or convolution)); --engine vllm is faster."
    ]


def test_the_slots_that_fit_are_measured_on_the_models_own_caches(monkeypatch, hybrid):
    keys = 2 * 2 * 8 * 4  # keys and values of 2 heads of 8 float32 numbers, in one of two layers
    state = 4 * (4 * 8 * 8) + 4 * (32 + 2 * 16) * 4  # recurrent, and convolution over 4 tokens
    monkeypatch.setattr(DeviceMemory, "free", lambda self: 4 * 10 * (state + 100 * keys))
    assert slots_that_fit(hybrid, 100) == 10
