import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.stats import centred_positions, mean_and_error

scores = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@given(scores)
def test_with_equal_weights_mean_and_error_are_the_usual_ones(votes):
    mean, error = mean_and_error(votes, [2.0] * len(votes))
    assert mean == pytest.approx(statistics.fmean(votes))
    assert error == pytest.approx(statistics.stdev(votes) / math.sqrt(len(votes)), abs=1e-12)


@given(scores, st.data())
def test_a_weighted_mean_lies_among_its_votes(votes, data):
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=len(votes), max_size=len(votes)))
    mean, error = mean_and_error(votes, weights)
    assert min(votes) <= mean <= max(votes)
    assert error is not None
    assert error >= 0


def test_one_vote_has_no_standard_error():
    assert mean_and_error([0.7], [3.0]) == (0.7, None)


def test_positions_are_evenly_spaced_around_zero():
    assert centred_positions(5) == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert centred_positions(1) == [0.0]
    assert centred_positions(0) == []
