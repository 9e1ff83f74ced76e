"""Advantages against their definitions, and against what the two earlier steps (shaping, then advantage) gave."""

import statistics
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gavel.trainer.data.advantages import advantages, group_advantages, score_reliability
from tests.limits import HANG_SECONDS

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
errors = st.lists(st.none() | st.floats(0, 3), max_size=16)


@given(rewards)
def test_the_mean_advantage_is_the_reward_minus_the_groups_mean(values):
    mean = sum(values) / len(values)
    assert advantages(values) == pytest.approx([value - mean for value in values], abs=1e-12)


@given(rewards)
def test_the_rank_advantage_is_the_centred_rank_with_ties_in_the_middle(values):
    values = [round(value, 1) for value in values]
    expected = []
    for value in values:
        places = [place for place, other in enumerate(sorted(values)) if other == value]
        expected.append(sum(places) / len(places) / (len(values) - 1) - 0.5)
    assert advantages(values, "rank") == pytest.approx(expected, abs=1e-12)


@given(rewards, errors)
def test_the_shrunk_advantage_is_the_mean_one_times_the_share_of_true_variance(values, known):
    variance = statistics.variance(values)
    assume(variance == 0 or variance > 1e-9)
    noise = [error * error for error in known if error is not None]
    error = statistics.fmean(noise) if noise else 0.0
    factor = (max(0.0, 1 - error / variance) if variance else 0.0) if noise else 1.0
    assert score_reliability(values, known) == pytest.approx(factor, rel=1e-6, abs=1e-9)
    expected = [value * score_reliability(values, known) for value in advantages(values)]
    assert advantages(values, "shrunk", known) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_a_group_of_one_has_no_advantage(values):
    with pytest.raises(ValueError, match="group of one"):
        advantages(values)


def test_no_model_library_is_loaded_for_it():
    program = "import sys, gavel.trainer.data.advantages; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=HANG_SECONDS) == "False False\n"


def test_with_labels_shrunk_advantages_are_scaled_by_how_much_more_often_the_judge_is_right_than_wrong():
    assert group_advantages([0.0, 1.0], [0.0, 0.0], kind="shrunk", p_right=0.8) == pytest.approx([-0.3, 0.3])
    assert group_advantages([0.0, 1.0], kind="mean", p_right=0.8) == [-0.5, 0.5]
