# pyright: reportArgumentType=false, reportUnknownMemberType=false
"""Statistics over seeds: equal to the slow version, calibrated, and honest with few seeds."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gavel.reports.statistics import (
    mean_of_scores,
    mean_over_seeds,
    paired_difference,
    pass_at_k,
    share,
)

DIFFERENCES = st.lists(st.floats(-1, 1), min_size=2, max_size=10).filter(lambda values: np.std(values) > 1e-6)


@given(DIFFERENCES)
def test_the_interval_is_scipy_s(values: list[float]) -> None:
    slow = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    mean, paired = mean_over_seeds(values), paired_difference(values, 0.03)
    assert mean.value is not None
    assert mean.half_width is not None
    assert (mean.value - mean.half_width, mean.value + mean.half_width) == pytest.approx(slow, abs=1e-9)
    assert (paired.low, paired.high) == pytest.approx(slow, abs=1e-9)


@given(DIFFERENCES, st.floats(0.01, 0.5))
def test_what_is_equivalent_is_so_by_two_one_sided_tests(values: list[float], margin: float) -> None:
    lower = stats.ttest_1samp(values, -margin, alternative="greater")[1]
    upper = stats.ttest_1samp(values, margin, alternative="less")[1]
    paired = paired_difference(values, margin)
    assert paired.equivalent == paired.verdict.startswith("equivalent")
    if paired.equivalent:
        assert max(lower, upper) <= 0.025 + 1e-9


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([-0.01, 0.0, -0.02, 0.01, -0.01], "equivalent"),
        ([0.2, 0.22, 0.19, 0.21], "different, by more than 0.03"),
        ([0.02, 0.05, 0.03, 0.04], "different"),
        ([0.2, -0.1, 0.1], "not shown: neither"),
        ([0.0], "not shown: one seed"),
        ([0.0, 0.0], "not shown: the seeds' differences"),
    ],
)
def test_verdicts(differences: list[float], verdict: str) -> None:
    assert paired_difference(differences, 0.03).verdict.startswith(verdict)


@pytest.mark.parametrize(("samples", "passed"), [(5, 0), (5, 2), (6, 6), (4, 1)])
def test_pass_at_k_is_the_share_of_draws_in_which_one_passes(samples: int, passed: int) -> None:
    outcomes = [number < passed for number in range(samples)]
    for k in range(1, samples + 1):
        draws = list(combinations(outcomes, k))
        assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(samples, passed, samples + 1)


def test_an_interval_is_never_without_width_and_stays_within_0_and_1() -> None:
    for values in ([1.0] * 8, [0.0] * 8, [0.5] * 8, [0.0, 1.0] * 4):
        found = share(values, 8)
        low, value, high = found.low or 0.0, found.value or 0.0, found.high or 0.0
        assert 0 <= low <= value <= high <= 1
        assert low < high
    assert share([1.0], 1).low is None
    scores = mean_of_scores([1.0, 0.9, 0.8, 0.9])
    assert scores.low is not None
    assert (scores.low > 0, scores.high, mean_of_scores([0.4]).low) == (True, 1.0, None)
    assert share([], 0).value is None
    wilson = share([1.0] * 40 + [0.0] * 10, 50)
    assert (wilson.low, wilson.high) == (pytest.approx(0.670, abs=0.003), pytest.approx(0.888, abs=0.003))
