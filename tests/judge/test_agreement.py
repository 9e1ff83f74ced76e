"""Agreement with a reference, checked against Kendall's tau-b as it is defined."""

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge.agreement import mean_kendall_tau

untimed = settings(deadline=None)

pairs_of_a_group = st.lists(st.tuples(st.integers(0, 4).map(float), st.integers(0, 4).map(float)), max_size=8)


def tau_b(pairs: list[tuple[float, float]]) -> float | None:
    """Kendall 1945: concordant less discordant pairs, over the geometric mean of the untied ones."""
    agreement = judged = referenced = 0
    for (score, reference), (other_score, other_reference) in combinations(pairs, 2):
        by_score = (score > other_score) - (score < other_score)
        by_reference = (reference > other_reference) - (reference < other_reference)
        agreement += by_score * by_reference
        judged += by_score != 0
        referenced += by_reference != 0
    return agreement / math.sqrt(judged * referenced) if judged and referenced else None


@untimed
@given(st.lists(pairs_of_a_group, max_size=4))
def test_the_mean_is_over_the_groups_that_have_an_order(groups: list[list[tuple[float, float]]]) -> None:
    taus = [tau for tau in map(tau_b, groups) if tau is not None]
    expected = sum(taus) / len(taus) if taus else None
    assert mean_kendall_tau(groups) == (None if expected is None else pytest.approx(expected, abs=1e-9))


@untimed
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8, unique=True))
def test_the_same_order_agrees_fully_and_the_reverse_not_at_all(scores: list[float]) -> None:
    assert mean_kendall_tau([[(score, score) for score in scores]]) == pytest.approx(1)
    assert mean_kendall_tau([[(score, -score) for score in scores]]) == pytest.approx(-1)


@untimed
@given(pairs_of_a_group, st.randoms())
def test_the_order_of_the_members_does_not_matter(pairs: list[tuple[float, float]], dice) -> None:
    shuffled = list(pairs)
    dice.shuffle(shuffled)
    here, there = mean_kendall_tau([pairs]), mean_kendall_tau([shuffled])
    assert here == (None if there is None else pytest.approx(there, abs=1e-9))


@pytest.mark.parametrize("groups", [[], [[]], [[(0.5, 1.0)]], [[(0.5, 0.0), (0.5, 1.0)]], [[(0.1, 1.0), (0.9, 1.0)]]])
def test_without_any_order_there_is_no_agreement_to_report(groups: list[list[tuple[float, float]]]) -> None:
    assert mean_kendall_tau(groups) is None


def test_a_group_without_an_order_is_left_out_of_the_mean() -> None:
    good = [(0.1, 0.0), (0.9, 1.0)]
    assert mean_kendall_tau([good, [(0.5, 0.0), (0.5, 1.0)], good]) == pytest.approx(1)


def test_true_success_may_be_the_reference() -> None:
    assert mean_kendall_tau([[(0.2, False), (0.4, False), (0.9, True)]]) == pytest.approx(2 / math.sqrt(6))


def test_groups_may_be_an_iterator() -> None:
    assert mean_kendall_tau(iter([[(0.1, 0.0), (0.9, 1.0)]])) == pytest.approx(1)
