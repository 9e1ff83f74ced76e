"""The embedded engine: against plain forward passes, in coarse precision, and its slots of keys and values."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.kv_cache import COMMON_CONTEXT, shared_context, slots_that_fit
from gavel.trainer.engines.protocol import BASE, Sampled, Shaping
from gavel.trainer.engines.transformers import TransformersEngine, sample_tokens, uniform_numbers
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy, load_base
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import WholeModel, ask, assert_sampled_by, request_for, sequence, some_ids, tiny_model
from tests.trainer.families import BY_NAME

pytestmark = pytest.mark.slow


class Gate:
    """Stops the engine's thread before its next forward pass until opened."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

        self.passes: list[int] = []
        """Tokens computed by each forward pass, padding included."""
        model.get_decoder().register_forward_pre_hook(self._before, with_kwargs=True)

    def _before(self, module, positional, named) -> None:
        self.passes.append(named["input_ids"].numel())
        self.reached.set()
        assert self.open.wait(HANG_SECONDS)


def converse(engine: TransformersEngine, number: int) -> list[Sampled]:
    """The replies of a conversation of three turns; four of them begin alike."""
    dice = np.random.default_rng(number)
    ids = some_ids(number // 4, [5, 130, 470, 40][number // 4 % 4]) + some_ids(number, int(dice.integers(1, 20)))
    replies: list[Sampled] = []
    for turn in range(3):
        replies.append(ask(engine, ids, seed=1000 * number + turn, max_tokens=int(dice.integers(3, 30))))
        ids = [*ids, *replies[-1].token_ids, *some_ids(number + turn, int(dice.integers(1, 40)))]
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
    ids = some_ids(1, 60)
    for turn in range(4):
        gate.passes.clear()
        found = ask(engine, ids, seed=turn, max_tokens=10)
        assert gate.passes[0] == (64 if turn == 0 else 16)  # 60, then 6: the last sampled token was never run
        assert_sampled_by(plain, ids, found)
        ids = [*ids, *found.token_ids, *some_ids(turn + 10, 5)]


def test_a_group_computes_its_shared_prompt_once(make_engine):
    model = tiny_model()
    gate = Gate(model)
    engine, ids = make_engine(model, slots=8), some_ids(3, 100)
    first = engine.submit(request_for(some_ids(9, 2), max_tokens=1))  # holds the engine until all have arrived
    assert gate.reached.wait(HANG_SECONDS)
    futures = [engine.submit(request_for(ids, seed=n, max_tokens=1)) for n in range(8)]
    gate.open.set()
    wait([first, *futures], timeout=HANG_SECONDS)
    assert gate.passes == [16, 112, 16]  # in multiples of 16: 2, 100, then the last tokens of seven and an idle slot


def test_uniform_numbers_are_uniform_over_seeds_and_over_positions():
    many = np.arange(20000)
    for numbers in (uniform_numbers(many, 0 * many), uniform_numbers(0 * many + 7, many)):
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


@pytest.mark.parametrize("pass_tokens", [1, 64])
def test_a_wave_in_bounded_passes_samples_what_one_pass_samples(make_engine, pass_tokens):
    def prefilled(**settings: int) -> list[Sampled]:
        engine, held = make_engine(tiny_model(), slots=16, max_context=512, **settings), threading.Event()
        waiting = threading.Thread(target=lambda: engine._between_passes(lambda: held.wait(HANG_SECONDS)))
        waiting.start()
        gates.append(gate := Gate(engine._model))
        gate.open.set()
        futures = [engine.submit(request_for(some_ids(n, 3 + 23 * n), seed=n, max_tokens=4)) for n in range(8)]
        held.set()
        waiting.join()
        return [future.result(timeout=HANG_SECONDS) for future in futures]

    gates: list[Gate] = []
    assert prefilled(pass_tokens=pass_tokens) == prefilled()
    bounded, whole = (max(gate.passes) for gate in gates)
    assert whole > 164, "one pass for the wave"
    assert bounded <= pass_tokens + 15, "a decoding pass has a token for each slot"


def test_the_base_can_be_named_beside_the_adapters(make_engine):
    engine = make_engine()
    with pytest.raises(KeyError):
        engine.publish(WholeModel(torch.nn.Linear(1, 1)), 1)
    engine.publish(WholeModel(tiny_model(1)), 1)
    ids = [5, 9, 3]
    futures = [engine.submit(request_for(ids, adapter_version=version)) for version in (BASE, 1, BASE, None)]
    found = [future.result(timeout=HANG_SECONDS) for future in futures]
    assert [each.adapter_version for each in found] == [BASE, 1, BASE, 1]
    for each, model in zip(found, [tiny_model(), tiny_model(1)] * 2, strict=True):
        assert_sampled_by(model, ids, each)


def test_a_request_of_another_distribution_leaves_those_beside_it_alone(make_engine):
    engine, ids = make_engine(), [5, 9, 3]
    alone = ask(engine, ids)
    shaping = Shaping(top_k=1, frequency_penalty=1.0, logit_bias={7: 3.0, 10**6: 1.0})
    futures = [engine.submit(request_for(ids, shaping=each)) for each in (None, shaping)]
    plain, shaped = (future.result(timeout=HANG_SECONDS) for future in futures)
    assert plain.token_ids == alone.token_ids
    assert plain.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert shaped.logprobs == pytest.approx([0.0] * len(shaped.token_ids), abs=1e-6)


IDS = [(7 * n) % 800 for n in range(120)]
TEXT = sequence(IDS[:1], IDS[1:], [0.0] * (len(IDS) - 1))


def learned(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return trained_logprobs(policy, [TEXT])


def update(policy: Policy, rate: float) -> None:
    """A step towards higher log-probs, as large for every parameter as Adam's first."""
    trained_logprobs(policy, [TEXT]).mean().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(rate * parameter.grad.sign())
            parameter.grad = None


def test_a_small_update_moves_the_sampler_as_it_moves_the_learner(make_engine):
    """As on a GPU: the base in bf16, the adapter in fp32."""
    coarse = Policy(EMBEDDED_POLICY, LoraSettings(rank=4), settings=PolicySettings(dtype="bfloat16"))
    engine = make_engine(load_base(EMBEDDED_POLICY, torch.bfloat16, "cpu"), slots=4, max_context=256)
    engine.publish(coarse, 0)
    before, served_before = learned(coarse), torch.tensor(engine.score(IDS))
    plain = dict(load_base(EMBEDDED_POLICY, torch.bfloat16, "cpu").named_parameters())
    update(coarse, 1e-4)
    engine.publish(coarse, 1)
    unmoved = [(weight == plain[name]).float().mean().item() for name, weight in coarse.merged_weights()]
    assert min(unmoved) > 0.5, "merged into bf16, most weights would not notice such an update"
    moved, served_moved = learned(coarse) - before, torch.tensor(engine.score(IDS)) - served_before
    assert moved.mean() > 0.1
    assert served_moved.mean().item() == pytest.approx(moved.mean().item(), rel=0.1)
    update(coarse, 0.01)
    engine.publish(coarse, 2)
    gaps = (learned(coarse) - torch.tensor(engine.score(IDS))).abs()
    assert gaps.mean() < 0.0125
    assert gaps.max() < 0.05


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


def test_the_slots_that_fit_are_measured_on_the_models_own_caches(monkeypatch):
    hybrid = BY_NAME["Qwen3.5"].model()
    keys = 2 * 2 * 8 * 4  # keys and values of 2 heads of 8 float32 numbers, in one of two layers
    state = 4 * (4 * 8 * 8) + 4 * (32 + 2 * 16) * 4  # recurrent, and convolution over 4 tokens
    monkeypatch.setattr(DeviceMemory, "free", lambda self: 4 * 10 * (state + 100 * keys))
    assert slots_that_fit(hybrid, 100) == 10
