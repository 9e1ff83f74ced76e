import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.stats import PositionBias, mean_and_error, order_agreement, score_interval
from gavel.scenarios.judgement import Judgement

scores = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@given(scores, st.data())
def test_a_weighted_mean_lies_among_its_votes(votes, data):
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=len(votes), max_size=len(votes)))
    mean, error = mean_and_error(votes, weights)
    assert min(votes) <= mean <= max(votes)
    assert error is not None
    assert error >= 0


def test_one_vote_has_no_standard_error():
    assert mean_and_error([0.7], [3.0]) == (0.7, None)


def test_an_interval_is_that_of_students_t_and_stays_within_the_scale():
    judgement = Judgement(score=0.5, standard_error=0.1, degrees_of_freedom=4)
    assert score_interval(judgement) == pytest.approx((0.5 - 0.21318, 0.5 + 0.21318), abs=1e-4)
    assert score_interval(Judgement(score=0.5, standard_error=0.1), 0.95) == pytest.approx((0.304, 0.696), abs=1e-3)
    assert score_interval(Judgement(score=0.95, standard_error=0.1, degrees_of_freedom=4)) == (
        pytest.approx(0.7368, abs=1e-3),
        1.0,
    )


@pytest.mark.parametrize(
    ("ballots", "gain", "noise", "biased"),
    [
        (50, 0.11, 0.0, True),
        (49, 0.11, 0.0, False),
        (50, -0.11, 0.0, True),
        (50, 0.09, 0.0, False),
        (50, 0.11, 0.4, False),
    ],
)
def test_a_bias_must_be_large_and_significant(ballots, gain, noise, biased):
    bias = PositionBias()
    for number in range(ballots):
        tilt = gain + (noise if number % 2 else -noise)
        bias.add([0.5 - tilt, 0.5, 0.5 + tilt])
    assert bias.is_biased == biased


FOUR = {0: 0.9, 1: 0.6, 2: 0.4, 3: 0.1}
BACK = {0: 0.1, 1: 0.4, 2: 0.6, 3: 0.9}

CASES = {
    "two orders that agree": ([FOUR, FOUR], 1.0),
    "another scale": ([FOUR, {member: score / 10 for member, score in FOUR.items()}], 1.0),
    "two opposed orders": ([FOUR, BACK], -1.0),
    "two orders of two members": ([{0: 0.9, 1: 0.1}, {0: 0.1, 1: 0.9}], -1.0),
    "three against one": ([FOUR, FOUR, FOUR, BACK], 0.0),
    "one order": ([FOUR], None),
    "no order": ([], None),
    "orders that tie all": ([dict.fromkeys(FOUR, 0.5)] * 2, None),
    "an order that ties all": ([FOUR, dict.fromkeys(FOUR, 0.5)], None),
    "blocks without common pairs": ([{0: 0.9, 1: 0.1}, {1: 0.1, 2: 0.9}], None),
    "blocks with a common pair": ([{0: 0.9, 1: 0.1}, {0: 0.7, 1: 0.3, 2: 1.0}], 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_agreement_is_the_mean_tau_between_orders(case):
    orders, expected = CASES[case]
    assert order_agreement(orders) == expected
