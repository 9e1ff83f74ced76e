"""Intervals over groups, checked against drawing the groups one by one."""

import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.audit.bootstrap import RESAMPLES, IntervalEstimate, correlation, mean_over_groups, ratio
from tests.judge.audit.resamples import resampled_groups


def percentiles(values: list[float]) -> tuple[float, float]:
    """The 2.5 % and 97.5 % points, read between neighbours in order."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    return at(0.025), at(0.975)


def test_the_interval_is_that_of_groups_drawn_one_by_one() -> None:
    random = Random(0)
    values = [random.random() if random.random() < 0.8 else None for _ in range(40)]
    means = []
    for indices in resampled_groups(len(values)):
        means.append(statistics.fmean(value for index in indices if (value := values[index]) is not None))
    assert len(means) == RESAMPLES
    low, high = percentiles(means)
    known = [value for value in values if value is not None]
    expected = IntervalEstimate(statistics.fmean(known), low, high, len(known))
    got = mean_over_groups(values)
    assert (got.value, got.low, got.high) == pytest.approx((expected.value, expected.low, expected.high), abs=1e-12)
    assert got.groups == expected.groups


@pytest.mark.parametrize("total", [2, 7, 600])
def test_every_resample_has_as_many_groups_as_there_are(total: int) -> None:
    resamples = resampled_groups(total)
    assert len(resamples) == RESAMPLES
    assert all(len(indices) == total and set(indices) <= set(range(total)) for indices in resamples)


def test_the_ratio_and_the_correlation_are_those_of_the_resampled_groups() -> None:
    random = Random(4)
    above, below = ([random.random() for _ in range(25)] for _ in range(2))
    xs, ys = ([[random.gauss() for _ in range(3)] for _ in range(25)] for _ in range(2))
    products = [sum(x * y for x, y in zip(a, b, strict=True)) for a, b in zip(xs, ys, strict=True)]
    squares = [[sum(x * x for x in of_group) for of_group in side] for side in (xs, ys)]
    ratios, correlations = [], []
    for indices in resampled_groups(25):
        ratios.append(sum(above[n] for n in indices) / sum(below[n] for n in indices))
        spreads = [math.sqrt(sum(side[n] for n in indices)) for side in squares]
        correlations.append(sum(products[n] for n in indices) / math.prod(spreads))
    got = ratio(above, below)
    assert (got.low, got.high) == pytest.approx(percentiles(ratios), abs=1e-12)
    got = correlation(products, *squares)
    assert (got.low, got.high) == pytest.approx(percentiles(correlations), abs=1e-12)


def test_resamples_without_a_value_are_left_out_of_the_interval() -> None:
    got = mean_over_groups([0.2, 0.8, *[None] * 6])  # about one resample in ten has neither value
    assert (got.low, got.high) == pytest.approx((0.2, 0.8))
    assert got.groups == 2


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = Random(1)
    covered = 0
    for _ in range(200):
        got = mean_over_groups([random.gauss(0.3, 1) for _ in range(40)])
        assert got.low is not None
        assert got.high is not None
        covered += got.low <= 0.3 <= got.high
    assert 175 <= covered <= 199


@given(st.lists(st.none() | st.floats(-1, 1), min_size=1, max_size=12))
def test_the_value_lies_in_its_interval_or_there_is_none(values: list[float | None]) -> None:
    got = mean_over_groups(values)
    known = [value for value in values if value is not None]
    assert got.groups == len(known)
    if not known:
        assert got == IntervalEstimate(None, None, None, 0)
    elif len(known) == 1:
        assert got == IntervalEstimate(known[0], None, None, 1)
    else:
        assert got.value == pytest.approx(statistics.fmean(known), abs=1e-12)
        assert got.low is not None
        assert got.high is not None
        assert min(known) - 1e-12 <= got.low <= got.high <= max(known) + 1e-12


def test_a_ratio_weighs_groups_by_their_denominators() -> None:
    assert ratio([1, 3], [1, 9]).value == pytest.approx(0.4)
    assert ratio([0, 0], [0, 0]) == IntervalEstimate(None, None, None, 0)
    assert mean_over_groups([]) == IntervalEstimate(None, None, None, 0)


def test_a_correlation_with_a_constant_is_not_defined() -> None:
    assert correlation([0, 0], [1, 2], [0, 0]) == IntervalEstimate(None, None, None, 2)
    assert correlation([2, 1], [2, 2], [2, 2]).value == pytest.approx(3 / 4)


def test_the_same_groups_have_the_same_interval_again() -> None:
    assert mean_over_groups([0.1, 0.5, 0.9]) == mean_over_groups([0.1, 0.5, 0.9])
