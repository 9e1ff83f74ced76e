"""The divergence in the reward against its formula written out token by token."""

import math
from statistics import fmean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.fields import FieldError
from gavel.trainer.config import Ppo, TrainConfig
from gavel.trainer.data.advantages import advantages
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.learner.learner import penalized_advantages, penalized_rewards
from tests.trainer.conftest import sequence

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
                TrainedSequence(sequence([1], [2] * len(values), [0.0] * len(values)), advantage, number, rewards)
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
    result = torch.cat(penalized_advantages(sequences, k1, config)).tolist()
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
    result = penalized_advantages(*trained(found, kind), config)
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


@pytest.mark.parametrize("kind", ["std", "rank", "shrunk"])
def test_advantages_that_are_not_linear_in_the_reward_are_refused_per_sequence(kind):
    with pytest.raises(FieldError, match="needs advantage='mean' or 'rloo'"):
        TrainConfig(kl_in_reward=0.1, kl_in_reward_per="sequence", advantage=kind)
    TrainConfig(kl_in_reward=0.1, advantage=kind)


def test_a_reference_that_no_divergence_uses_is_refused():
    with pytest.raises(FieldError, match="set beta or kl_in_reward"):
        TrainConfig(reference="start")
