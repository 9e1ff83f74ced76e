"""Judges beside judges: published tables, and the definitions written out."""

import math
from itertools import combinations, permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.audit.inter_rater import (
    call_vs_call,
    inter_rater_reliability,
    intraclass_correlation,
    judge_vs_judge,
    krippendorff_alpha,
)
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import choice

untimed = settings(deadline=None)

SHROUT_FLEISS = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
"""Table 2 of Shrout and Fleiss 1979: 6 targets, 4 raters; ICC(2,1) is .29 and ICC(2,4) is .62."""
KRIPPENDORFF = [
    [1, 1, None, 1],
    [2, 2, 3, 2],
    [3, 3, 3, 3],
    [3, 3, 3, 3],
    [2, 2, 2, 2],
    [1, 2, 3, 4],
    [4, 4, 4, 4],
    [1, 1, 2, 1],
    [2, 2, 2, 2],
    [None, 5, 5, 5],
    [None, None, 1, 1],
    [None, 3, None, None],
]
"""The example of Krippendorff 2011: 12 units, 4 observers, some missing; its interval alpha is .849."""

Ratings = list[list[list[float | None]]]
rated_groups = st.integers(2, 4).flatmap(
    lambda raters: st.lists(
        st.lists(
            st.lists(st.none() | st.integers(0, 5).map(float), min_size=raters, max_size=raters), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=4,
    )
)


def icc(groups: Ratings) -> tuple[float | None, float | None]:
    """The two-way analysis of variance, cell by cell."""
    rows = [[score for score in row if score is not None] for members in groups for row in members if None not in row]
    n, k = len(rows), len(groups[0][0])
    if n < 2:
        return None, None
    whole = sum(map(sum, rows)) / (n * k)
    of_row = [sum(row) / k for row in rows]
    of_column = [sum(column) / n for column in zip(*rows, strict=True)]
    r = k * sum((mean - whole) ** 2 for mean in of_row) / (n - 1)
    c = n * sum((mean - whole) ** 2 for mean in of_column) / (k - 1)
    rest = sum((rows[i][j] - of_row[i] - of_column[j] + whole) ** 2 for i in range(n) for j in range(k))
    e = rest / ((n - 1) * (k - 1))
    below = (r + (k - 1) * e + k * (c - e) / n, r + (c - e) / n)
    single, mean = ((r - e) / d if d > 1e-9 else None for d in below)
    return single, mean


def alpha(groups: Ratings) -> float | None:
    """Over all ordered pairs of scores: within members, and of any two."""
    units = [[score for score in row if score is not None] for members in groups for row in members]
    units = [unit for unit in units if len(unit) > 1]
    scores = [score for unit in units for score in unit]
    if not scores:
        return None
    observed = sum(sum((a - b) ** 2 for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units)
    expected = sum((a - b) ** 2 for a, b in permutations(scores, 2)) / (len(scores) - 1)
    return 1 - observed / expected if expected else None


def same(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-6)


def test_the_published_example_of_the_icc_comes_out() -> None:
    single, mean = intraclass_correlation([[[float(score) for score in row] for row in SHROUT_FLEISS]])
    assert single.value == pytest.approx(0.29, abs=0.005)
    assert mean.value == pytest.approx(0.62, abs=0.005)


def test_the_published_example_of_alpha_comes_out() -> None:
    assert krippendorff_alpha([KRIPPENDORFF]).value == pytest.approx(0.849, abs=0.0005)


@untimed
@given(rated_groups)
def test_the_icc_is_that_of_the_analysis_of_variance(groups: Ratings) -> None:
    single, mean = icc(groups)
    got_single, got_mean = intraclass_correlation(groups)
    assert same(got_single.value, single)
    assert same(got_mean.value, mean)


@untimed
@given(rated_groups)
def test_alpha_is_one_less_observed_by_expected_disagreement(groups: Ratings) -> None:
    assert same(krippendorff_alpha(groups).value, alpha(groups))


def test_judges_that_say_the_same_agree_fully_and_noise_does_not_agree() -> None:
    random = Random(0)
    truth: Ratings = [[[random.random()] * 3 for _ in range(8)] for _ in range(60)]
    noise: Ratings = [[[random.random() for _ in range(3)] for _ in range(8)] for _ in range(60)]
    assert all(f.value == pytest.approx(1) for f in (*intraclass_correlation(truth), krippendorff_alpha(truth)))
    for figure in (*intraclass_correlation(noise), krippendorff_alpha(noise)):
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low < 0 < figure.high


def test_the_mean_of_more_raters_is_more_reliable_as_spearman_and_brown_say() -> None:
    random = Random(1)
    groups: Ratings = []
    for _ in range(100):
        groups.append([[quality + random.gauss() for _ in range(4)] for quality in (random.gauss() for _ in range(8))])
    got = inter_rater_reliability(groups, ["a", "b", "c", "d"])
    assert got.icc_single.value == pytest.approx(0.5, abs=0.05)
    assert got.icc_mean.value == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("groups", [[], [[]], [[[0.5, None]]], [[[0.5, 0.5]], [[0.5, 0.5]]], [[[0.5]]]])
def test_without_anything_to_compare_nothing_is_defined(groups: Ratings) -> None:
    for figure in (*intraclass_correlation(groups), krippendorff_alpha(groups)):
        assert (figure.value, figure.low, figure.high) == (None, None, None)


def voted(*members: dict[str, list[float]]) -> TrajectoryGroup:
    """Members with the votes of some models, each vote in an order of its own; positions as listed."""
    trajectories = []
    for position, of_models in enumerate(members):
        votes = [
            Vote(score=score, position=position, order=10 * m + n, model=model)
            for m, (model, scores) in enumerate(of_models.items())
            for n, score in enumerate(scores)
        ]
        scores = [vote.score for vote in votes]
        score = sum(scores) / len(scores) if scores else None
        trajectories.append(Trajectory(reward=score, judgement=Judgement(score=score, votes=votes)))
    return TrajectoryGroup(trajectories)


def test_a_judge_is_the_mean_of_its_votes() -> None:
    group = voted({"a": [0.1, 0.3], "b": [0.2]}, {"a": [0.5, 0.7], "b": [0.6]}, {"a": [0.9, 0.9], "b": [0.9]})
    got = judge_vs_judge([group])
    assert got is not None
    assert got.raters == ("a", "b")
    assert got.icc_single.value == pytest.approx(1)
    assert got.pairs["a", "b"].tau.value == pytest.approx(1)
    assert got.pairs["a", "b"].members == 3


def test_calls_are_compared_vote_by_vote() -> None:
    group = voted({"a": [0.1, 0.9], "b": [0.2]}, {"a": [0.9, 0.1], "b": [0.8]})
    got = call_vs_call([group, group])
    assert got is not None
    assert got.raters == ("a call 1", "a call 2", "b call 1")
    expected = krippendorff_alpha([[[0.1, 0.9, 0.2], [0.9, 0.1, 0.8]]] * 2).value
    assert got.alpha.value == expected


def test_one_judge_has_no_other_and_one_call_no_second() -> None:
    single = voted({"a": [0.1]}, {"a": [0.9]})
    assert judge_vs_judge([single]) is None
    assert call_vs_call([single]) is None
    assert judge_vs_judge([voted({"a": [0.1, 0.2]}, {"a": [0.9, 0.3]})]) is None


def test_what_a_judge_left_out_is_missing_and_not_zero() -> None:
    group = voted({"a": [0.2], "b": [0.2]}, {"a": [0.8], "b": [0.8]}, {"a": [0.5], "b": []})
    got = judge_vs_judge([group, group])
    assert got is not None
    assert got.icc_single.value == pytest.approx(1)
    assert got.pairs["a", "b"].members == 4


def test_members_that_were_shown_as_one_count_once() -> None:
    group = voted({"a": [0.2], "b": [0.3]}, {"a": [0.8], "b": [0.6]})
    double = TrajectoryGroup([*group.trajectories, group.trajectories[1].model_copy(deep=True)])
    assert judge_vs_judge([double]) == judge_vs_judge([group])


def test_groups_that_nobody_judged_are_an_error() -> None:
    with pytest.raises(JudgeError, match="has a judge's score"):
        judge_vs_judge([TrajectoryGroup([Trajectory()])])
    with pytest.raises(JudgeError, match="has a judge's score"):
        call_vs_call([])


async def test_of_a_real_jury_the_one_with_another_taste_stands_out() -> None:
    random = Random(0)
    table = {f"sim-{n}": Latent(random.gauss()) for n in range(8 * 12)}
    ids = list(table)
    jury = [
        SimulatedJudge(table, Bias(noise=0.2, idiosyncrasy=taste), name=name)
        for name, taste in (("one", 0.0), ("two", 0.0), ("odd", 2.0))
    ]
    judge = Judge(jury, orders=1)
    groups = []
    for start in range(0, len(ids), 8):
        members = (Trajectory(messages_and_choices=[choice(name)]) for name in ids[start : start + 8])
        groups.append(await judge.score(TrajectoryGroup(members)))
    got = judge_vs_judge(groups)
    assert got is not None
    taus = {pair: got.pairs[pair].tau.value or 0.0 for pair in combinations(got.raters, 2)}
    assert taus["one", "two"] > 0.7
    assert max(taus["one", "odd"], taus["two", "odd"]) < 0.5
