"""Generalized advantage estimation against its defining sums."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.learner.value_head import gae

numbers = st.floats(-5, 5)


@given(st.lists(st.tuples(numbers, numbers), max_size=12), st.floats(0.1, 1), st.floats(0, 1))
def test_an_advantage_is_the_discounted_sum_of_the_later_temporal_differences(pairs, gamma, gae_lambda):
    rewards, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    following = [*values[1:], 0.0]
    differences = [r + gamma * later - v for r, v, later in zip(rewards, values, following, strict=False)]
    slow = [
        sum((gamma * gae_lambda) ** (later - at) * differences[later] for later in range(at, len(pairs)))
        for at in range(len(pairs))
    ]
    assert gae(rewards, values, gamma, gae_lambda) == pytest.approx(slow, abs=1e-9)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12))
def test_with_lambda_one_an_advantage_is_the_rest_of_the_rewards_minus_the_value(pairs):
    rewards, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rest = [math.fsum(rewards[at:]) - values[at] for at in range(len(pairs))]
    assert gae(rewards, values, 1.0, 1.0) == pytest.approx(rest, abs=1e-9)


def test_the_example_of_the_module_docstring_holds():
    assert gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=1.0) == [0.5, 0.5]
    assert gae([0.0, 1.0], [0.5, 0.5], gamma=1.0, gae_lambda=0.0) == [0.0, 0.5]
