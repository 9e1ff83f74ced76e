import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.modes import orders
from gavel.judge.stats import PositionBias, centred_positions, mean_and_error, order_agreement, score_interval
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


def test_the_offset_of_each_position_is_found_over_many_ballots():
    bias = PositionBias()
    for row in orders(4, 64, "seed"):
        bias.add([0.2 + member / 10 - position / 20 for position, member in enumerate(row)])
    assert bias.means == pytest.approx([0.075, 0.025, -0.025, -0.075])
    assert bias.slope == pytest.approx(-0.075)


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


@given(st.lists(st.dictionaries(st.integers(0, 5), st.sampled_from([0.1, 0.5, 0.6, 0.9])), max_size=5))
def test_agreement_counts_each_two_orders_and_each_two_members(orders):
    signs = [
        (scores[a] > scores[b]) - (scores[a] < scores[b])
        for pair in combinations(orders, 2)
        for a, b in combinations(range(6), 2)
        if all(a in scores and b in scores and scores[a] != scores[b] for scores in pair)
        for scores in pair
    ]
    products = [one * other for one, other in zip(signs[::2], signs[1::2], strict=True)]
    assert order_agreement(orders) == (pytest.approx(sum(products) / len(products)) if products else None)
