import pytest

from gavel.judge.stats import PositionBias, order_agreement, score_interval
from gavel.scenarios.judgement import Judgement


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
    "three against one": ([FOUR, FOUR, FOUR, BACK], 0.0),
    "one order": ([FOUR], None),
    "orders that tie all": ([dict.fromkeys(FOUR, 0.5)] * 2, None),
    "an order that ties all": ([FOUR, dict.fromkeys(FOUR, 0.5)], None),
    "blocks without common pairs": ([{0: 0.9, 1: 0.1}, {1: 0.1, 2: 0.9}], None),
    "blocks with a common pair": ([{0: 0.9, 1: 0.1}, {0: 0.7, 1: 0.3, 2: 1.0}], 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_agreement_is_the_mean_tau_between_orders(case):
    orders, expected = CASES[case]
    assert order_agreement(orders) == expected
