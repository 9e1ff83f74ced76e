"""Every loss, advantage estimate and penalty against its formula written out token by token in plain Python."""

import math
from statistics import fmean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.fields import FieldError
from gavel.trainer.config import Cispo, ClippedSurrogate, Gspo, Ppo, Reinforce, SamplerCorrection, TrainConfig
from gavel.trainer.data.advantages import advantages
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.learner.learner import penalize_advantages, penalized_rewards
from gavel.trainer.learner.losses import (
    TokenScores,
    clipped,
    clipped_surrogate,
    highest,
    kl,
    sampler_weights,
    token_losses,
    token_ratio,
)
from tests.trainer.conftest import sequence as one_turn

logprob = st.floats(-8, 0)
tokens = st.lists(st.tuples(logprob, logprob, st.floats(-3, 3)), min_size=1, max_size=12)
sequences = st.lists(tokens, min_size=1, max_size=5)
clips = st.tuples(st.floats(0, 0.9), st.floats(0, 2))


def columns(rows):
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]


@given(tokens, clips, st.none() | st.floats(0.01, 3))
def test_what_counts_as_clipped_is_what_has_no_gradient(rows, clip, above):
    low, high = clip
    bounds = (low, high, None if above is None else 1 + high + above)
    new, old, advantages = columns(rows)
    new.requires_grad_(True)
    clipped_surrogate(token_ratio(new, old), advantages, *bounds).sum().backward()
    assert new.grad is not None
    under, over = clipped(token_ratio(new, old), advantages, *bounds)
    assert not (under & over).any()
    assert ((new.grad == 0) | ~(under | over)).all()
    assert ((new.grad != 0) | under | over | (advantages.abs() * token_ratio(new, old) < 1e-300)).all()


@pytest.mark.parametrize("gap", [50.0, 1e4, math.inf])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("loss", [ClippedSurrogate(), ClippedSurrogate(dual_clip=3), Gspo(), Cispo(), Reinforce()])
def test_extreme_log_ratios_stay_finite(gap, advantage, sign, loss):
    new = torch.tensor([sign * min(gap, 1e9) if sign < 0 else 0.0], requires_grad=True)
    old = torch.tensor([-gap if sign > 0 else 0.0])
    config = TrainConfig(loss=loss, beta=0.1, kl_with_ratio=True)
    outcome = token_losses(config, TokenScores(new, old, old, torch.tensor([advantage]), [1], reference=old))
    assert sampler_weights(new, old, [1], SamplerCorrection()).weights.isfinite().all()
    outcome.losses.sum().backward()
    assert outcome.losses.isfinite().all()
    assert new.grad.isfinite().all()


@given(tokens, st.sampled_from(["k1", "k2", "k3"]))
def test_the_estimates_of_the_divergence_are_the_plain_formulas(rows, estimator):
    new, reference, _ = columns(rows)
    found = kl(new, reference, estimator)
    plain = {
        "k1": [n - r for n, r, _ in rows],
        "k2": [(n - r) ** 2 / 2 for n, r, _ in rows],
        "k3": [math.exp(r - n) - (r - n) - 1 for n, r, _ in rows],
    }
    assert found.tolist() == pytest.approx(plain[estimator], rel=1e-9, abs=1e-12)
    assert estimator == "k1" or (found >= -1e-15).all()  # k3 of a difference of 1e-14 rounds to -1e-16


POLICY, BASE = [0.2, 0.5, 0.3], [0.4, 0.4, 0.2]


@pytest.mark.parametrize(
    ("estimator", "with_ratio", "unbiased"),
    [("k1", True, True), ("k3", True, True), ("k2", False, True), ("k1", False, False), ("k3", False, False)],
)
def test_which_estimates_have_the_gradient_of_the_divergence(estimator, with_ratio, unbiased):
    logits = torch.tensor(POLICY, dtype=torch.float64).log().requires_grad_(True)
    base = torch.tensor(BASE, dtype=torch.float64).log()

    def gradient(value: torch.Tensor) -> list[float]:
        (found,) = torch.autograd.grad(value, logits)
        return found.tolist()

    policy = logits.log_softmax(-1)
    exact = gradient((policy.exp() * (policy - base)).sum())
    policy = logits.log_softmax(-1)
    config = TrainConfig(beta=1, kl_estimator=estimator, kl_with_ratio=with_ratio)
    nothing = torch.zeros(3, dtype=torch.float64)
    scores = TokenScores(policy, policy.detach(), policy.detach(), nothing, [3], reference=base)
    found = gradient((policy.detach().exp() * token_losses(config, scores).losses).sum())
    assert (found == pytest.approx(exact)) is unbiased
    if estimator == "k1" and not with_ratio:
        assert found == pytest.approx([0, 0, 0])


@given(sequences, st.floats(0, 0.99), st.floats(1, 2))
def test_a_sequence_is_kept_whole_or_masked_whole_by_the_geometric_mean_of_its_ratios(rows, floor, cap):
    expected = []
    for sequence in rows:
        ratios = [math.exp(new - old) for new, old, _ in sequence]
        mean = math.prod(ratio ** (1 / len(ratios)) for ratio in ratios)
        expected += [float(floor <= mean <= cap)] * len(sequence)
    new, old, _ = columns([row for sequence in rows for row in sequence])
    correction = SamplerCorrection(mode="geometric_mask", floor=floor, cap=cap)
    found = sampler_weights(new, old, [len(sequence) for sequence in rows], correction)
    assert found.weights.tolist() == expected
    assert found.bounded.tolist() == [weight == 0 for weight in expected]


PER_SEQUENCE = {"kl_in_reward": 0.1, "kl_in_reward_per": "sequence"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": {"kind": "grpo", "dual_clip": 1.1}}, "dual_clip"),
        ({"loss": {"kind": "gspo", "aggregation": "dapo"}}, "aggregation"),
        ({"loss": {"kind": "unheard of"}}, "loss"),
        ({"sampler_correction": {"floor": 2.0, "cap": 2.0}}, "floor must be below cap"),
        ({"clip_low": 0.1}, "clip_low"),
        ({"loss": Gspo(), "top_entropy": 0.2}, "gspo has one ratio a sequence"),
        *((PER_SEQUENCE | {"advantage": kind}, "'mean' or 'rloo'") for kind in ("std", "rank", "shrunk")),
        *(
            ({"step_advantages": True, **other}, "step_advantages")
            for other in ({"kl_in_reward": 0.1}, {"normalize_over_batch": True}, {"advantage": "rank"}, {"loss": Ppo()})
        ),
        *(
            ({"advantage": "critic", **other}, "leave one out|step_advantages needs")
            for other in ({"normalize_over_batch": True}, {"kl_in_reward": 0.1}, {"step_advantages": True})
        ),
        ({"loss": Ppo(), "gae_lambda": 0.9}, "gae_lambda"),
    ],
)
def test_settings_that_mean_nothing_or_contradict_each_other_are_refused_by_name(settings, said):
    with pytest.raises(FieldError, match=said):
        TrainConfig(**settings)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]) | st.floats(0, 12), min_size=1, max_size=60), st.floats(0.01, 1)
)
def test_the_chosen_tokens_are_those_that_sorting_by_entropy_puts_first(entropies, share):
    count = max(1, math.ceil(share * len(entropies) - 1e-9))
    lowest = sorted(entropies, reverse=True)[count - 1]
    found = highest(torch.tensor(entropies, dtype=torch.float64), share).tolist()
    assert found == [entropy >= lowest for entropy in entropies]


WEIGHT = 0.3
k1s = st.lists(st.floats(-3, 3), min_size=1, max_size=6)
members = st.lists(st.tuples(st.floats(0, 1), k1s), min_size=2, max_size=5)
groups = st.lists(members, min_size=1, max_size=3)


def trained(found, kind="mean"):
    """Sequences and k1 of groups of (score, k1 of the tokens)."""
    sequences, k1 = [], []
    for number, group in enumerate(found):
        own = advantages([score for score, _ in group], kind)
        for advantage, (_, values) in zip(own, group, strict=True):
            rewards = [*range(len(values))]
            sequences.append(
                TrainedSequence(one_turn([1], [2] * len(values), [0.0] * len(values)), advantage, number, rewards)
            )
            k1.append(torch.tensor(values, dtype=torch.float64))
    return sequences, k1


@given(groups, st.booleans())
def test_per_token_the_later_tokens_are_charged_to_each(found, normalize):
    config = TrainConfig(kl_in_reward=WEIGHT, normalize_over_batch=normalize)
    sequences, k1 = trained(found)
    expected = []
    for each, own in zip(sequences, k1, strict=True):
        for at in range(len(own)):
            charged = sum(own[later].item() for later in range(at, len(own)))
            expected.append(each.advantage - WEIGHT * charged)
    if normalize:
        mean, spread = fmean(expected), math.sqrt(stdev(expected) ** 2 + 1e-8)
        expected = [(value - mean) / spread for value in expected]
    result = torch.cat(penalize_advantages(sequences, k1, config)).tolist()
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(groups, st.sampled_from(["mean", "rloo"]), st.booleans())
def test_per_sequence_the_advantages_are_those_of_the_rewards_less_the_divergence(found, kind, normalize):
    config = TrainConfig(
        kl_in_reward=WEIGHT, kl_in_reward_per="sequence", advantage=kind, normalize_over_batch=normalize
    )
    expected = [
        value
        for group in found
        for value in advantages([score - WEIGHT * math.fsum(values) for score, values in group], kind)
    ]
    if normalize:
        scale = math.sqrt(fmean(value**2 for value in expected))
        if scale < 1e-9:  # rounding decides what it is divided by
            return
        expected = [value / scale for value in expected]
    result = penalize_advantages(*trained(found, kind), config)
    assert all(torch.equal(own, own[0].expand_as(own)) for own in result)
    assert [own[0].item() for own in result] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_with_a_value_head_every_token_is_charged_or_the_last():
    sequences, k1 = trained([[(0.0, [0.1, 0.2]), (1.0, [0.5])]])
    rewards = [
        penalized_rewards(sequences, k1, TrainConfig(kl_in_reward=2.0, kl_in_reward_per=per, loss=Ppo()))
        for per in ("token", "sequence")
    ]
    assert rewards[0] == [pytest.approx([-0.2, 0.6]), pytest.approx([-1.0])]
    assert rewards[1] == [pytest.approx([0.0, 0.4]), pytest.approx([-1.0])]
