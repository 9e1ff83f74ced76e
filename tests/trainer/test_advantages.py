import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import advantages, has_signal

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
kinds = st.sampled_from(["mean", "std"])


@given(rewards)
def test_the_mean_advantage_is_the_reward_minus_the_groups_mean(values):
    mean = sum(values) / len(values)
    assert advantages(values) == pytest.approx([value - mean for value in values], abs=1e-12)


@given(rewards)
def test_the_std_advantage_divides_by_the_unbiased_deviation(values):
    mean, deviation = sum(values) / len(values), statistics.stdev(values)
    expected = [(value - mean) / (deviation + 1e-4) for value in values]
    assert advantages(values, "std") == pytest.approx(expected, abs=1e-9)


@given(rewards, kinds)
def test_advantages_sum_to_zero(values, kind):
    assert math.fsum(advantages(values, kind)) == pytest.approx(0, abs=1e-9)


@given(rewards, st.floats(-100, 100), kinds)
def test_a_shift_of_all_rewards_changes_nothing(values, shift, kind):
    shifted = advantages([value + shift for value in values], kind)
    assert shifted == pytest.approx(advantages(values, kind), abs=1e-7)


@given(rewards, kinds)
def test_a_better_reward_never_has_a_smaller_advantage(values, kind):
    pairs = sorted(zip(values, advantages(values, kind), strict=True))
    assert all(one <= other for (_, one), (_, other) in itertools.pairwise(pairs))


def test_a_near_tie_stays_small_unless_divided_by_the_deviation():
    near = [0.50, 0.51]
    assert max(advantages(near)) == pytest.approx(0.005)
    assert max(advantages(near, "std")) > 0.6


@pytest.mark.parametrize("values", [[], [1.0]])
def test_a_group_of_one_has_no_advantage(values):
    with pytest.raises(ValueError, match="group of one"):
        advantages(values)


def test_float_residue_is_no_signal():
    assert 0.1 + 0.2 != 0.3
    assert not has_signal([0.1 + 0.2, 0.3, 0.3], 1e-6)
    assert not has_signal([0.5, 0.5 + 1e-6 / 2], 1e-6)
    assert has_signal([0.5, 0.5 + 2e-6], 1e-6)
