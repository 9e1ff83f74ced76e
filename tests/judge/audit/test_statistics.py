import math
from random import Random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.audit.agreement import (
    agreement,
    agreement_of_pairs,
    intraclass_correlation,
    judge_vs_judge,
    mean_kendall_tau,
)
from gavel.judge.audit.bootstrap import RESAMPLES, estimate, mean_over_groups
from gavel.judge.errors import JudgeError
from gavel.scenarios.group import GroupError, TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import Trajectory


def resampled_groups(total: int) -> list[list[int]]:
    """The group indices of every resample that `estimate` draws for `total` groups."""
    rows: list[list[int]] = []

    def record(*times: np.ndarray) -> np.ndarray:
        rows.extend([number for number, n in enumerate(row) for _ in range(int(n))] for row in np.array(times).T)
        return np.zeros(len(times[0]))

    estimate(np.eye(total).tolist(), record, [True] * total)
    observed, *resamples = rows
    assert observed == list(range(total))
    return resamples


def test_the_interval_is_that_of_groups_drawn_one_by_one() -> None:
    random = Random(0)
    values = [random.random() if random.random() < 0.8 else None for _ in range(40)]
    means = [mean_of([values[index] for index in indices]) for indices in resampled_groups(len(values))]
    assert len(means) == RESAMPLES
    expected = [mean_of(values), *np.percentile(np.array(means, float), [2.5, 97.5])]
    got = mean_over_groups(values)
    assert [got.value, got.low, got.high] == pytest.approx(expected, abs=1e-12)
    assert got.groups == 40 - values.count(None)


untimed = settings(deadline=None)
Groups = list[list[tuple[float, float]]]
levels = st.integers(0, 4).map(float)
groups_of_pairs = st.lists(st.lists(st.tuples(levels, levels), max_size=8), min_size=1, max_size=4)


def mean_of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def same(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-9)


def pearson(pairs: list[tuple[float, float]]) -> float | None:
    if not pairs:
        return None
    xs, ys = zip(*pairs, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    square_x, square_y = sum((x - mean_x) ** 2 for x in xs), sum((y - mean_y) ** 2 for y in ys)
    product = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return product / math.sqrt(square_x * square_y) if min(square_x, square_y) > 1e-12 else None


def accuracy(pairs: list[tuple[float, float]]) -> float | None:
    """Over every (better, worse) by the reference."""
    decided = [(one, two) for one, value in pairs for two, lower in pairs if value > lower]
    return mean_of([(one > two) + (one == two) / 2 for one, two in decided])


def first(pairs: list[tuple[float, float]]) -> float | None:
    values = [value for _, value in pairs]
    if len(set(values)) < 2:
        return None
    winners = [value for score, value in pairs if score == max(score for score, _ in pairs)]
    return sum(value == max(values) for value in winners) / len(winners)


@untimed
@given(groups_of_pairs)
def test_within_groups_every_statistic_is_the_mean_of_its_definition(groups: Groups) -> None:
    got = agreement_of_pairs(groups, "reference")
    assert same(got.pair_accuracy.value, mean_of([accuracy(pairs) for pairs in groups]))
    assert same(got.top_1.value, mean_of([first(pairs) for pairs in groups]))
    assert got.members == sum(map(len, groups))


RANKED = {
    "the same order": ([(0.1, 1.0), (0.5, 2.0), (0.9, 3.0)], 1.0),
    "the reverse": ([(0.9, 1.0), (0.5, 2.0), (0.1, 3.0)], -1.0),
    "a tie of the judge": ([(0.5, 1.0), (0.5, 2.0)], 0.0),
    "a tie of the reference": ([(0.1, 1.0), (0.9, 1.0)], None),
    "one member": ([(0.1, 1.0)], None),
    "nobody": ([], None),
}


@pytest.mark.parametrize("case", RANKED)
def test_a_judge_that_ties_what_differs_has_no_agreement_and_a_group_without_an_order_none_to_report(case: str) -> None:
    pairs, expected = RANKED[case]
    got = agreement_of_pairs([pairs], "reference")
    assert same(got.tau.value, expected)
    assert same(mean_kendall_tau([pairs, pairs]), expected)


@untimed
@given(groups_of_pairs)
def test_the_advantage_correlation_is_pearsons_of_what_is_left_of_the_groups_means(groups: Groups) -> None:
    centred = []
    for pairs in groups:
        scores, values = zip(*pairs, strict=True) if pairs else ((), ())
        centred += [(s - sum(scores) / len(scores), v - sum(values) / len(values)) for s, v in pairs]
    assert same(agreement_of_pairs(groups, "reference").advantage_correlation.value, pearson(centred))


def judged(*members: tuple[float | None, float | None]) -> TrajectoryGroup:
    return TrajectoryGroup(
        Trajectory(
            reward=score,
            judgement=Judgement(score=score),
            metrics={"other": 1.0} | ({} if value is None else {"independent_reward": value}),
        )
        for score, value in members
    )


def test_members_without_a_score_or_a_reference_are_left_out() -> None:
    group = judged((0.1, 0.0), (0.9, 1.0), (None, 5.0), (0.5, None), (0.7, math.nan))
    got = agreement([group])
    assert (got.reference, got.members) == ("independent_reward", 2)
    assert got.tau.value == pytest.approx(1)
    assert agreement(group) == got
    with pytest.raises(GroupError, match=r"TrajectoryGroup\(\["):
        agreement(group.trajectories)  # type: ignore[arg-type]


def test_a_reference_that_nobody_has_and_a_score_that_no_judge_gives_are_errors_that_name_them() -> None:
    with pytest.raises(JudgeError, match=r"(?s)success.*independent_reward, other"):
        agreement([judged((0.1, 0.0), (0.9, 1.0))], "success")
    for score in (math.nan, math.inf, 7.0, -0.5):
        with pytest.raises(JudgeError, match="member 2 of group 1"):
            agreement([judged((0.1, 0.0), (score, 1.0))])


SHROUT_FLEISS = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
"""Table 2 of Shrout and Fleiss 1979: 6 targets, 4 raters; ICC(2,1) is .29 and ICC(2,4) is .62."""
Ratings = list[list[list[float | None]]]


def test_the_published_example_comes_out() -> None:
    single, mean = intraclass_correlation([[[float(score) for score in row] for row in SHROUT_FLEISS]])
    assert single.value == pytest.approx(0.29, abs=0.005)
    assert mean.value == pytest.approx(0.62, abs=0.005)


@pytest.mark.parametrize("groups", [[], [[]], [[[0.5, None]]], [[[0.5, 0.5]], [[0.5, 0.5]]], [[[0.5]]]])
def test_without_anything_to_compare_nothing_is_defined(groups: Ratings) -> None:
    for figure in intraclass_correlation(groups):
        assert (figure.value, figure.low, figure.high) == (None, None, None)


def voted(position: int, *scores: float) -> Trajectory:
    """A member with two votes of the model a and one of b, each in an order of its own."""
    votes = [Vote(score=s, position=position, order=n, model="aab"[n]) for n, s in enumerate(scores)]
    return Trajectory(reward=fmean(scores), judgement=Judgement(score=fmean(scores), votes=votes))


def test_a_judge_is_the_mean_of_its_votes() -> None:
    members = [voted(0, 0.1, 0.3, 0.2), voted(1, 0.5, 0.7, 0.6), voted(2, 0.9, 0.9, 0.9)]
    got = judge_vs_judge([TrajectoryGroup(members)])
    assert got.raters == ("a", "b")
    assert got.icc_single.value == pytest.approx(1)
    assert got.taus == {("a", "b"): pytest.approx(1)}
