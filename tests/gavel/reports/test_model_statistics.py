"""Shares with intervals, and pass@k against drawing k samples in every way."""

from itertools import combinations

import pytest

from gavel.reports.model_statistics import mean_of_tasks, pass_at_k, share


@pytest.mark.parametrize(("samples", "passed"), [(5, 0), (5, 2), (6, 6), (4, 1)])
def test_pass_at_k_is_the_share_of_draws_in_which_one_passes(samples: int, passed: int) -> None:
    outcomes = [number < passed for number in range(samples)]
    for k in range(1, samples + 1):
        draws = list(combinations(outcomes, k))
        assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_more_than_was_sampled_is_refused() -> None:
    for k in (0, 4):
        with pytest.raises(ValueError, match="samples"):
            pass_at_k(3, 1, k)


def test_an_interval_is_never_without_width_and_stays_within_0_and_1() -> None:
    for values in ([1.0] * 8, [0.0] * 8, [0.5] * 8, [0.0, 1.0] * 4):
        found = share(values, 8)
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low < found.high <= 1
        assert found.low <= found.value <= found.high
    assert share([1.0], 1).low is None
    assert share([], 0).value is None


def test_single_trials_have_wilson_s_interval() -> None:
    """40 of 50: Wilson's own interval is .670 to .888."""
    found = share([1.0] * 40 + [0.0] * 10, 50)
    assert found.low == pytest.approx(0.670, abs=0.003)
    assert found.high == pytest.approx(0.888, abs=0.003)


def test_samples_that_agree_within_their_tasks_count_for_less() -> None:
    alike = share([1.0, 0.0] * 10, 80)
    mixed = share([0.5, 0.25, 0.75, 0.5] * 5, 80)
    assert alike.high is not None
    assert alike.low is not None
    assert mixed.high is not None
    assert mixed.low is not None
    assert alike.high - alike.low > 1.5 * (mixed.high - mixed.low)


def test_a_mean_has_student_s_interval_and_equal_values_have_none() -> None:
    found = mean_of_tasks([0.2, 0.4, 0.6])
    assert (found.low, found.high) == (pytest.approx(-0.0968, abs=1e-3), pytest.approx(0.8968, abs=1e-3))
    assert mean_of_tasks([0.5, 0.5]).low is None
    assert found.text() == "0.40 (-0.10 to 0.90)"
    assert share([1.0] * 8, 8).short() == "1.00 (.68–1.00)"
