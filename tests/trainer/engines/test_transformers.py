"""The engine against transformers' own `generate` and against plain forward passes."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.device_memory import TensorBytes
from gavel.trainer.engines.kv_cache import Slots
from gavel.trainer.engines.passes import BatchedPasses
from gavel.trainer.engines.protocol import BASE, Sampled, Shaping
from gavel.trainer.engines.transformers import TransformersEngine, sample_tokens, uniform_numbers
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import VOCABULARY, WholeModel, full_logprobs, request_for, tiny_model

pytestmark = pytest.mark.slow

OTHER_WEIGHTS = 1


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def ask(engine: TransformersEngine, prompt_ids: list[int], **changes) -> Sampled:
    return engine.submit(request_for(prompt_ids, **changes)).result(timeout=HANG_SECONDS)


def other_weights() -> WholeModel:
    return WholeModel(tiny_model(OTHER_WEIGHTS))


class Gate:
    """Stops the engine's thread before its next forward pass until opened."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

        self.passes: list[int] = []
        """Tokens computed by each forward pass, padding included."""
        model.get_decoder().register_forward_pre_hook(self._before, with_kwargs=True)  # type: ignore[operator]

    def _before(self, module, positional, named) -> None:
        self.passes.append(named["input_ids"].numel())
        self.reached.set()
        assert self.open.wait(HANG_SECONDS)


def converse(engine: TransformersEngine, number: int) -> list[Sampled]:
    """The replies of a conversation of three turns; four of them begin alike."""
    dice = np.random.default_rng(number)
    ids = prompt(number // 4, [5, 130, 470, 40][number // 4 % 4]) + prompt(number, int(dice.integers(1, 20)))
    replies: list[Sampled] = []
    for turn in range(3):
        replies.append(ask(engine, ids, seed=1000 * number + turn, max_tokens=int(dice.integers(3, 30))))
        ids = [*ids, *replies[-1].token_ids, *prompt(number + turn, int(dice.integers(1, 40)))]
    return replies


@pytest.mark.parametrize(
    ("threads", "shape"),
    [
        (1, {}),
        (2, {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "intermediate_size": 75}),
        (3, {"intermediate_size": 5001}),
    ],
)
def test_a_reply_has_the_same_bits_whatever_else_is_sampled(make_engine, threads, shape):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = make_engine(tiny_model(**shape), max_context=900)
        alone = [converse(engine, number) for number in range(16)]
        for slots in (5, 128):
            crowded = make_engine(tiny_model(**shape), max_context=900, slots=slots)
            with ThreadPoolExecutor(16) as pool:
                assert list(pool.map(partial(converse, crowded), range(16))) == alone
    finally:
        torch.set_num_threads(before)


def test_a_conversation_that_goes_on_computes_only_what_is_new(make_engine):
    model = tiny_model()
    gate = Gate(model)
    gate.open.set()
    engine, plain = make_engine(model, slots=4, max_context=512), tiny_model()
    ids = prompt(1, 60)
    for turn in range(4):
        gate.passes.clear()
        found = ask(engine, ids, seed=turn, max_tokens=10)
        assert gate.passes[0] == (64 if turn == 0 else 16)  # 60, then 6: the last sampled token was never run
        expected = full_logprobs(plain, ids + found.token_ids)[len(ids) - 1 :]
        assert found.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        ids = [*ids, *found.token_ids, *prompt(turn + 10, 5)]


def test_a_group_computes_its_shared_prompt_once(make_engine):
    model = tiny_model()
    gate = Gate(model)
    engine, ids = make_engine(model, slots=8), prompt(3, 100)
    first = engine.submit(request_for(prompt(9, 2), max_tokens=1))  # holds the engine until all have arrived
    assert gate.reached.wait(HANG_SECONDS)
    futures = [engine.submit(request_for(ids, seed=n, max_tokens=1)) for n in range(8)]
    gate.open.set()
    wait([first, *futures], timeout=HANG_SECONDS)
    assert gate.passes == [16, 112, 16]  # in multiples of 16: 2, 100, then the last tokens of seven and an idle slot


def test_a_publication_that_does_not_fit_raises_where_it_was_asked_for(make_engine):
    engine = make_engine()
    with pytest.raises(KeyError):
        engine.publish(WholeModel(torch.nn.Linear(1, 1)), 1)
    assert ask(engine, prompt(0, 5)).adapter_version == 0


def test_uniform_numbers_are_uniform_over_seeds_and_over_positions():
    for numbers in (
        uniform_numbers(np.arange(20000), np.zeros(20000, dtype=np.int64)),
        uniform_numbers(np.full(20000, 7), np.arange(20000)),
    ):
        assert ((numbers >= 0) & (numbers < 1)).all()
        histogram = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert (np.abs(histogram - 1000) < 160).all()  # five standard deviations
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@given(st.integers(1, 400), st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
def test_a_token_is_drawn_where_the_cumulative_distribution_passes_the_number(vocabulary, seed, number):
    generator = torch.Generator().manual_seed(seed)
    logits = 8 * torch.randn(1, vocabulary, generator=generator)
    logits[torch.rand(1, vocabulary, generator=generator) < 0.3] = -torch.inf
    logits[0, seed % vocabulary] = 0.0
    probabilities = torch.softmax(logits, -1)
    upto = probabilities[0].double().cumsum(0)
    token = sample_tokens(probabilities, torch.tensor([number], dtype=torch.float64)).item()
    assert probabilities[0, token] > 0
    assert upto[token] - probabilities[0, token] - 1e-6 <= number * upto[-1] <= upto[token] + 1e-6


def prefilled(make_engine, prompts: list[list[int]], **settings) -> tuple[list[Sampled], list[int]]:
    """The replies to a wave of prompts, and the tokens of the passes before the first reply token of all of them."""
    model = tiny_model()
    gate = Gate(model)
    engine = make_engine(model, slots=16, max_context=512, **settings)
    gate.open.set()
    between = engine._between_passes
    held = threading.Event()
    waiting = threading.Thread(target=lambda: between(lambda: held.wait(HANG_SECONDS)))
    waiting.start()
    futures = [engine.submit(request_for(ids, seed=n, max_tokens=4)) for n, ids in enumerate(prompts)]
    held.set()
    waiting.join()
    return [future.result(timeout=HANG_SECONDS) for future in futures], gate.passes


@pytest.mark.parametrize("pass_tokens", [1, 64])
def test_a_wave_in_bounded_passes_samples_what_one_pass_samples(make_engine, pass_tokens):
    prompts = [prompt(seed, 3 + 23 * seed) for seed in range(8)]
    whole, passes = prefilled(make_engine, prompts)
    assert max(passes) > 164, "one pass for the wave"
    parts, passes = prefilled(make_engine, prompts, pass_tokens=pass_tokens)
    assert max(passes) <= pass_tokens + 15, "a decoding pass has a token for each slot"
    assert parts == whole


def test_a_bounded_pass_bounds_memory():
    tokens = 400
    needed = {}
    for most in (64, 8192):
        slots = Slots(8, 512)
        model = tiny_model(intermediate_size=4096)
        slots.reserve(512)
        passes = BatchedPasses(model, slots)
        with torch.inference_mode(), TensorBytes() as counted:
            for first in range(0, tokens, most):
                width = min(most, tokens - first)
                starts, counts = np.full(8, first), np.full(8, width)
                passes.logits(np.arange(8), np.zeros((8, width), dtype=np.int64), starts, counts)
        needed[most] = counted.peak
    assert needed[64] < needed[8192] / 3


def test_the_base_can_be_named_beside_the_adapters(make_engine):
    engine = make_engine()
    engine.publish(other_weights(), 1)
    ids = [5, 9, 3]
    futures = [engine.submit(request_for(ids, adapter_version=version)) for version in (BASE, 1, BASE, None)]
    found = [future.result(timeout=HANG_SECONDS) for future in futures]
    assert [each.adapter_version for each in found] == [BASE, 1, BASE, 1]
    for each, model in zip(found, [tiny_model(), tiny_model(OTHER_WEIGHTS)] * 2, strict=True):
        expected = full_logprobs(model, ids + each.token_ids)[len(ids) - 1 :]
        assert each.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_request_of_another_distribution_leaves_those_beside_it_alone(make_engine):
    engine = make_engine()
    ids = [5, 9, 3]
    alone = engine.submit(request_for(ids)).result(timeout=HANG_SECONDS)
    shaping = Shaping(top_k=1, frequency_penalty=1.0, logit_bias={7: 3.0, 10**6: 1.0})
    futures = [engine.submit(request_for(ids, shaping=each)) for each in (None, shaping)]
    plain, shaped = (future.result(timeout=HANG_SECONDS) for future in futures)
    assert plain.token_ids == alone.token_ids
    assert plain.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert shaped.logprobs == pytest.approx([0.0] * len(shaped.token_ids), abs=1e-6)
