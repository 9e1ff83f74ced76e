import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.losses import clipped_share, clipped_surrogate, kl_k3, token_weights

logprob = st.floats(-8, 0)
tokens = st.lists(st.tuples(logprob, logprob, st.floats(-3, 3)), min_size=1, max_size=12)
clips = st.tuples(st.floats(0, 0.9), st.floats(0, 2))
lengths = st.lists(st.integers(1, 40), min_size=1, max_size=10)


def columns(rows):
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]


@given(tokens, clips)
def test_the_surrogate_is_the_plain_formula_for_every_token(rows, clip):
    low, high = clip
    expected = []
    for new, old, advantage in rows:
        ratio = math.exp(new - old)
        clipped = min(max(ratio, 1 - low), 1 + high)
        expected.append(-min(ratio * advantage, clipped * advantage))
    found = clipped_surrogate(*columns(rows), low, high)
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(tokens, clips)
def test_the_clipped_share_is_the_share_of_tokens_without_a_gradient(rows, clip):
    low, high = clip
    removed = 0
    for new, old, advantage in rows:
        ratio = math.exp(new - old)
        removed += (ratio > 1 + high and advantage > 0) or (ratio < 1 - low and advantage < 0)
    assert clipped_share(*columns(rows), low, high).item() == pytest.approx(removed / len(rows), abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "learns"),
    [
        (1.0, 1.0, True),
        (1.19, 1.0, True),
        (1.21, 1.0, False),
        (0.5, 1.0, True),
        (1.0, -1.0, True),
        (0.81, -1.0, True),
        (0.79, -1.0, False),
        (1.5, -1.0, True),
    ],
)
def test_only_a_ratio_that_has_gone_far_enough_already_is_clipped(ratio, advantage, learns):
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    clipped_surrogate(new, torch.zeros(1), torch.tensor([advantage]), 0.2, 0.2).sum().backward()
    assert new.grad is not None
    assert bool(new.grad.item()) is learns
    if learns:
        assert new.grad.item() == pytest.approx(-ratio * advantage, rel=1e-5)


def test_the_two_sides_of_the_clip_are_set_apart():
    new = torch.log(torch.tensor([1.25, 0.75]))
    losses = clipped_surrogate(new, torch.zeros(2), torch.tensor([1.0, -1.0]), 0.1, 0.28)
    assert losses.tolist() == pytest.approx([-1.25, 0.9])


@given(tokens)
def test_on_policy_the_gradient_is_that_of_reinforce(rows):
    new, _, advantage = columns(rows)
    new.requires_grad_(True)
    clipped_surrogate(new, new.detach(), advantage, 0.2, 0.2).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx((-advantage).tolist())


@pytest.mark.parametrize("gap", [50.0, 1e4, math.inf])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_log_ratios_stay_finite(gap, advantage, sign):
    new = torch.tensor([sign * gap if sign < 0 else 0.0], requires_grad=True)
    old = torch.tensor([-gap if sign > 0 else 0.0])
    losses = clipped_surrogate(new, old, torch.tensor([advantage]), 0.2, 0.2) + kl_k3(new, old)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert new.grad is not None
    assert new.grad.isfinite().all()


@given(tokens)
def test_k3_is_never_negative_and_is_the_plain_formula(rows):
    new, reference, _ = columns(rows)
    found = kl_k3(new, reference)
    assert (found >= 0).all()
    expected = [math.exp(r - n) - (r - n) - 1 for n, r, _ in rows]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_k3_is_zero_only_where_the_policies_agree():
    assert kl_k3(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -1.5])).tolist() == pytest.approx([0, 0.1065307])


def test_the_mean_of_k3_is_the_divergence():
    policy, reference = torch.tensor([0.2, 0.5, 0.3]).log(), torch.tensor([0.4, 0.4, 0.2]).log()
    expected = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * kl_k3(policy, reference)).sum().item() == pytest.approx(expected.item(), rel=1e-5)


def mean(values):
    return sum(values) / len(values)


@given(lengths, st.data())
def test_weights_make_the_averages_that_they_are_named_for(counts, data):
    losses = [data.draw(st.lists(st.floats(-2, 2), min_size=n, max_size=n)) for n in counts]
    everything = [loss for row in losses for loss in row]
    expected = {
        "grpo": mean([mean(row) for row in losses]),
        "dapo": mean(everything),
        "dr_grpo": sum(everything) / (len(losses) * 128),
    }
    for aggregation, value in expected.items():
        weights = token_weights(counts, aggregation, 128)
        total = sum(weight * loss for weight, row in zip(weights, losses, strict=True) for loss in row)
        assert total == pytest.approx(value, abs=1e-9)


@given(lengths, st.sampled_from(["grpo", "dapo"]))
def test_the_weights_of_all_tokens_sum_to_one(counts, aggregation):
    weights = token_weights(counts, aggregation, 128)
    assert sum(n * weight for n, weight in zip(counts, weights, strict=True)) == pytest.approx(1)
