"""Agreement with a reference, every statistic checked against its definition, pair by pair."""

import math
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.audit.agreement import agreement, agreement_of_pairs, mean_kendall_tau, pooled_auc
from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.judge.audit.resamples import resampled_groups

untimed = settings(deadline=None)

pairs_of_a_group = st.lists(st.tuples(st.integers(0, 4).map(float), st.integers(0, 4).map(float)), max_size=8)


def tau_b(pairs: list[tuple[float, float]]) -> float | None:
    """Kendall 1945: concordant less discordant pairs, over the geometric mean of the untied ones; 0 for no opinion."""
    agreement = judged = referenced = 0
    for (score, reference), (other_score, other_reference) in combinations(pairs, 2):
        by_score = (score > other_score) - (score < other_score)
        by_reference = (reference > other_reference) - (reference < other_reference)
        agreement += by_score * by_reference
        judged += by_score != 0
        referenced += by_reference != 0
    if not referenced:
        return None
    return agreement / math.sqrt(judged * referenced) if judged else 0.0


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


@pytest.mark.parametrize("groups", [[], [[]], [[(0.5, 1.0)]], [[(0.5, 1.0), (0.5, 1.0)]], [[(0.1, 1.0), (0.9, 1.0)]]])
def test_without_any_order_there_is_no_agreement_to_report(groups: list[list[tuple[float, float]]]) -> None:
    assert mean_kendall_tau(groups) is None


def test_a_group_that_the_judge_ties_counts_as_no_agreement() -> None:
    good = [(0.1, 0.0), (0.9, 1.0)]
    tied, equal = [(0.5, 0.0), (0.5, 1.0)], [(0.1, 1.0), (0.9, 1.0)]
    assert mean_kendall_tau([good, tied, good, equal]) == pytest.approx(2 / 3)


def test_true_success_may_be_the_reference() -> None:
    assert mean_kendall_tau([[(0.2, False), (0.4, False), (0.9, True)]]) == pytest.approx(2 / math.sqrt(6))


def test_groups_may_be_an_iterator() -> None:
    assert mean_kendall_tau(iter([[(0.1, 0.0), (0.9, 1.0)]])) == pytest.approx(1)


Groups = list[list[tuple[float, float]]]

groups_of_pairs = st.lists(pairs_of_a_group, min_size=1, max_size=4)
labelled_groups = st.lists(
    st.lists(st.tuples(st.integers(0, 4).map(float), st.booleans().map(float)), max_size=8), min_size=1, max_size=4
)


def mean_of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def same(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return math.isclose(value, expected, abs_tol=1e-9)


def pearson(pairs: list[tuple[float, float]]) -> float | None:
    if not pairs:
        return None
    xs, ys = zip(*pairs, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    square_x, square_y = sum((x - mean_x) ** 2 for x in xs), sum((y - mean_y) ** 2 for y in ys)
    product = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return product / math.sqrt(square_x * square_y) if min(square_x, square_y) > 1e-12 else None


def rho(pairs: list[tuple[float, float]]) -> float | None:
    """Spearman 1904: Pearson's r of the mid-ranks; 0 for no opinion."""

    def rank(value: float, values: tuple[float, ...]) -> float:
        return sum(other < value for other in values) + sum(other == value for other in values) / 2

    scores, references = zip(*pairs, strict=True) if pairs else ((), ())
    if len(set(scores)) == 1 < len(set(references)):
        return 0.0
    return pearson([(rank(score, scores), rank(value, references)) for score, value in pairs])


def accuracy(pairs: list[tuple[float, float]]) -> float | None:
    """Over every (better, worse) by the reference."""
    wins = [
        1.0 if score > other else 0.5 if score == other else 0.0
        for score, value in pairs
        for other, other_value in pairs
        if value > other_value
    ]
    return sum(wins) / len(wins) if wins else None


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
    assert same(got.tau.value, mean_of([tau_b(pairs) for pairs in groups]))
    assert same(got.spearman.value, mean_of([rho(pairs) for pairs in groups]))
    assert same(got.pair_accuracy.value, mean_of([accuracy(pairs) for pairs in groups]))
    assert same(got.top_1.value, mean_of([first(pairs) for pairs in groups]))
    assert got.tau.groups == sum(tau_b(pairs) is not None for pairs in groups)
    assert got.members == sum(map(len, groups))


@untimed
@given(groups_of_pairs)
def test_the_advantage_correlation_is_pearsons_of_what_is_left_of_the_groups_means(groups: Groups) -> None:
    centred = []
    for pairs in groups:
        scores, values = zip(*pairs, strict=True) if pairs else ((), ())
        centred += [(s - sum(scores) / len(scores), v - sum(values) / len(values)) for s, v in pairs]
    assert same(agreement_of_pairs(groups, "reference").advantage_correlation.value, pearson(centred))


@untimed
@given(labelled_groups)
def test_the_auc_is_the_share_of_pairs_of_a_success_and_a_failure_that_are_in_order(groups: Groups) -> None:
    assert same(agreement_of_pairs(groups, "success").auc.value, accuracy([pair for pairs in groups for pair in pairs]))


def test_the_interval_of_the_auc_is_that_of_whole_groups_drawn_anew() -> None:
    random = Random(3)
    groups = [[(random.randrange(9) / 8, float(random.random() < 0.5)) for _ in range(4)] for _ in range(12)]
    drawn = []
    for indices in resampled_groups(len(groups)):
        drawn.append(accuracy([pair for index in indices for pair in groups[index]]))
    ordered = sorted(value for value in drawn if value is not None)
    got = pooled_auc(groups)
    assert got.low == pytest.approx(ordered[round(0.025 * len(ordered))], abs=0.005)
    assert got.high == pytest.approx(ordered[round(0.975 * len(ordered))], abs=0.005)


def test_a_graded_reference_has_no_auc() -> None:
    got = agreement_of_pairs([[(0.1, 0.0), (0.5, 0.5), (0.9, 1.0)]], "grade")
    assert got.auc.value is None
    assert got.tau.value == pytest.approx(1)


def test_float_residue_is_neither_a_rank_nor_a_success() -> None:
    got = agreement_of_pairs([[(0.3, 1.0), (0.1 + 0.2, 0.0), (0.3, 0.1 + 0.2), (0.1, 0.3)]], "reference")
    assert got.pair_accuracy.value == pytest.approx((0.5 + 0.5 + 1 + 0.5 + 0) / 5)


def test_what_is_not_defined_is_none() -> None:
    got = agreement_of_pairs([[(0.5, 1.0), (0.5, 1.0)], []], "success")
    nothing = (got.tau, got.spearman, got.pair_accuracy, got.top_1, got.auc, got.advantage_correlation)
    assert all((figure.value, figure.low, figure.high) == (None, None, None) for figure in nothing)


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


def test_a_shaped_reward_does_not_hide_the_judges_score() -> None:
    group = judged((0.1, 0.0), (0.9, 1.0))
    for member in group:
        member.reward = 0.5
    assert agreement([group]).tau.value == pytest.approx(1)


def test_the_reference_may_be_a_function() -> None:
    def depth(trajectory: Trajectory) -> float | None:
        value = trajectory.metrics.get("independent_reward")
        return None if value is None else -value

    got = agreement([judged((0.1, 0.0), (0.9, 1.0), (0.2, None))], depth)
    assert (got.reference, got.members, got.tau.value) == ("depth", 2, pytest.approx(-1))


def test_the_reference_may_be_a_field_of_a_row_that_was_scored_from_a_file() -> None:
    group = judged((0.1, None), (0.9, None), (0.5, None))
    for member, success in zip(group, (False, True, "unknown"), strict=True):
        member.metadata["success"] = success
    got = agreement([group], "success")
    assert (got.members, got.auc.value) == (2, pytest.approx(1))


def test_a_reference_that_nobody_has_is_an_error_that_names_what_there_is() -> None:
    with pytest.raises(JudgeError, match="no judged member has the reference success") as caught:
        agreement([judged((0.1, 0.0), (0.9, 1.0))], "success")
    assert "independent_reward, other" in (caught.value.remedy or "")


def test_groups_that_nobody_judged_are_an_error_with_the_remedy() -> None:
    with pytest.raises(JudgeError, match="none of the 1 members of 1 group has a judge's score") as caught:
        agreement([judged((None, 1.0))])
    assert "gavel score" in (caught.value.remedy or "")


@pytest.mark.parametrize("score", [math.nan, math.inf, 7.0, -0.5])
def test_a_score_that_no_judge_gives_is_an_error_that_names_the_member(score: float) -> None:
    with pytest.raises(JudgeError, match=r"of member 2 of group 1 is .*, and scores are from 0 to 1"):
        agreement([judged((0.1, 0.0), (score, 1.0))])
