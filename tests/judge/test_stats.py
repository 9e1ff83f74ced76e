import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.stats import centred_positions, mean_and_error, score_interval
from gavel.scenarios.judgement import Judgement

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


def test_an_interval_is_that_of_students_t_and_stays_within_the_scale():
    judgement = Judgement(score=0.5, standard_error=0.1, degrees_of_freedom=4)
    assert score_interval(judgement) == pytest.approx((0.5 - 0.21318, 0.5 + 0.21318), abs=1e-4)
    assert score_interval(Judgement(score=0.5, standard_error=0.1), 0.95) == pytest.approx((0.304, 0.696), abs=1e-3)
    assert score_interval(Judgement(score=0.95, standard_error=0.1, degrees_of_freedom=4)) == (
        pytest.approx(0.7368, abs=1e-3),
        1.0,
    )


@pytest.mark.parametrize("judgement", [Judgement(reason="no vote"), Judgement(score=0.5)])
def test_without_a_score_or_its_error_there_is_no_interval(judgement: Judgement):
    assert score_interval(judgement) is None
