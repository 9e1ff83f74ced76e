"""Inter-rater reliability: how well judges agree with each other, and the calls of one judge among themselves.

Raters score the members of all groups: a judge by the mean of its votes, or each single call. ICC and alpha also
count how the scores of different groups differ and how harsh a rater is; tau and the other statistics in `pairs`
depend on the order within groups only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from gavel.judge.audit.agreement import Agreement, agreement_of_pairs
from gavel.judge.audit.bootstrap import UNDEFINED, IntervalEstimate, defined, estimate
from gavel.judge.audit.votes import judge_calls, judged_groups, voting_models
from gavel.scenarios.group import TrajectoryGroup

if TYPE_CHECKING:
    from gavel.judge.audit.bootstrap import Array, Indices

Ratings = Sequence[Sequence[float | None]]
"""For each member of one group, the scores by rater; None where a rater gave none."""


@dataclass(frozen=True, slots=True)
class InterRaterReliability:
    raters: tuple[str, ...]
    icc_single: IntervalEstimate
    """ICC(2,1): the share of a single rater's variance that is due to the members. Over members that all rated."""
    icc_mean: IntervalEstimate
    """ICC(2,k): the same for the mean of all k raters."""
    alpha: IntervalEstimate
    """Krippendorff's alpha with the interval metric: 1 - observed / expected disagreement; scores may be missing."""
    pairs: Mapping[tuple[str, str], Agreement]
    """Agreement of each two judges, the second as the reference of the first; empty where the raters are calls."""


def judge_vs_judge(groups: Iterable[TrajectoryGroup]) -> InterRaterReliability | None:
    """Reliability between the judge models that voted, each by its mean vote for a member; None with fewer than two.

    Raises `JudgeError` when no member is judged.
    """
    groups = judged_groups(groups)
    judges = voting_models(groups)
    if len(judges) < 2:
        return None
    ratings = [_by_judge(group, judges) for group in groups]
    pairs = {
        (judges[one], judges[other]): agreement_of_pairs(
            [_both(members, one, other) for members in ratings], judges[other]
        )
        for one, other in combinations(range(len(judges)), 2)
    }
    return inter_rater_reliability(ratings, judges, pairs)


def call_vs_call(groups: Iterable[TrajectoryGroup]) -> InterRaterReliability | None:
    """Reliability between calls: rater n is the n-th score that a judge gave a member; None with fewer than two.

    Calls differ in order of presentation, so position bias counts as error here; ICC(2,k) is the reliability of the
    judge's score, the mean of its calls. Raises `JudgeError` when no member is judged.
    """
    rated = [_by_call(group) for group in judged_groups(groups)]
    raters = list(dict.fromkeys(rater for members in rated for scores in members for rater in scores))
    if len(raters) < 2:
        return None
    ratings = [[[scores.get(rater) for rater in raters] for scores in members] for members in rated]
    return inter_rater_reliability(ratings, [f"{model} call {number}" for model, number in raters])


def _by_judge(group: TrajectoryGroup, judges: Sequence[str]) -> Ratings:
    votes: dict[int, dict[str, list[float]]] = {}
    for call in judge_calls(group):
        for member, score in call.scores.items():
            votes.setdefault(member, {}).setdefault(call.model, []).append(score)
    return [[fmean(by[judge]) if judge in by else None for judge in judges] for by in votes.values()]


def _by_call(group: TrajectoryGroup) -> list[dict[tuple[str, int], float]]:
    scores: dict[int, dict[tuple[str, int], float]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for call in judge_calls(group):
        for member, score in call.scores.items():
            seen[member, call.model] += 1
            scores.setdefault(member, {})[call.model, seen[member, call.model]] = score
    return list(scores.values())


def inter_rater_reliability(
    groups: Sequence[Ratings], raters: Sequence[str], pairs: Mapping[tuple[str, str], Agreement] | None = None
) -> InterRaterReliability:
    """All statistics, from plain numbers."""
    single, mean = intraclass_correlation(groups)
    return InterRaterReliability(tuple(raters), single, mean, krippendorff_alpha(groups), pairs or {})


def _both(members: Ratings, one: int, other: int) -> list[tuple[float, float]]:
    return [(a, b) for row in members if (a := row[one]) is not None and (b := row[other]) is not None]


def intraclass_correlation(groups: Sequence[Ratings]) -> tuple[IntervalEstimate, IntervalEstimate]:
    """ICC(2,1) and ICC(2,k) over the members that every rater scored: two-way random effects, absolute agreement.

    Shrout and Fleiss 1979, cases 2; McGraw and Wong 1996, ICC(A,1) and ICC(A,k). With n members and k raters, from
    the mean squares of members R, raters C and the rest E: (R - E) / (R + (k - 1)E + k(C - E)/n), and
    (R - E) / (R + (C - E)/n).
    """
    import numpy as np

    k = next((len(row) for members in groups for row in members), 0)
    if k < 2:
        return UNDEFINED, UNDEFINED
    rows = [[row for row in members if None not in row] for members in groups]
    complete = [np.array(row, float).reshape(-1, k) for row in rows]
    count = np.array([len(scores) for scores in complete], float)
    squares = np.array([(scores**2).sum() for scores in complete])
    by_member = np.array([(scores.sum(axis=1) ** 2).sum() for scores in complete])
    by_rater = np.array([scores.sum(axis=0) for scores in complete])

    def mean_squares(drawn: "Indices") -> "tuple[Array, Array, Array, Array]":
        """n, and the mean squares of members, raters and the rest."""
        n = count[drawn].sum(axis=1)
        n = np.where(n > 1, n, np.nan)
        rater_sums = by_rater[drawn].sum(axis=1)
        correction = rater_sums.sum(axis=1) ** 2 / (n * k)
        members = by_member[drawn].sum(axis=1) / k - correction
        raters = (rater_sums**2).sum(axis=1) / n - correction
        rest = squares[drawn].sum(axis=1) - correction - members - raters
        return n, members / (n - 1), raters / (k - 1), rest / ((n - 1) * (k - 1))

    def single(drawn: "Indices") -> "Array":
        n, r, c, e = mean_squares(drawn)
        return (r - e) / defined(r + (k - 1) * e + k * (c - e) / n)

    def mean(drawn: "Indices") -> "Array":
        n, r, c, e = mean_squares(drawn)
        return (r - e) / defined(r + (c - e) / n)

    contributing = int((count > 0).sum())
    return estimate(single, len(groups), contributing), estimate(mean, len(groups), contributing)


def krippendorff_alpha(groups: Sequence[Ratings]) -> IntervalEstimate:
    """Alpha over the members with at least two scores, interval metric (Krippendorff 2011, "Computing Krippendorff's
    alpha-reliability"): 1 - mean squared difference within members / that between any two scores."""
    import numpy as np

    moments = [[_moments(scores) for row in members if len(scores := _known(row)) > 1] for members in groups]
    sums = np.array([np.sum(of_group, axis=0) if of_group else np.zeros(4) for of_group in moments])

    def statistic(drawn: "Indices") -> "Array":
        count, total, squares, within = sums[drawn].sum(axis=1).T
        expected = 2 * (count * squares - total**2) / (count * (count - 1))
        return 1 - within / count / defined(expected)

    return estimate(statistic, len(groups), sum(map(bool, moments)))


def _known(row: Sequence[float | None]) -> list[float]:
    return [score for score in row if score is not None]


def _moments(scores: Sequence[float]) -> tuple[float, float, float, float]:
    """Count, sum and sum of squares of a member's n scores, and the sum of squared differences over all ordered pairs,
    divided by n - 1."""
    count, total, squares = len(scores), sum(scores), sum(score**2 for score in scores)
    return count, total, squares, 2 * (count * squares - total**2) / (count - 1)
