# pyright: reportMissingTypeStubs=false
"""Agreement of a judge's scores with a reference: a hand-crafted reward, true success, or another judge.

Scores are relative to their group, so statistics are computed within groups and averaged over them. A group in which
a statistic is undefined is left out of it. Between raters, ICC also counts how the scores of different groups differ,
and how harsh a rater is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from gavel.judge.audit.bootstrap import UNDEFINED, IntervalEstimate, correlation, defined, estimate, mean_over_groups
from gavel.judge.audit.votes import judged_groups, votes_by_model
from gavel.judge.errors import JudgeError
from gavel.judge.stats import centred_sums
from gavel.scenarios.formats.row import INDEPENDENT as INDEPENDENT
from gavel.scenarios.formats.row import as_number
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

if TYPE_CHECKING:
    from gavel.judge.audit.bootstrap import Array

Pairs = Sequence[tuple[float, float]]
"""(judge's score, reference) for the members of one group."""
_DIGITS = 9
"""Differences beyond these decimals are floating-point residue."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge compared with a reference."""

    reference: str
    members: int
    """Members with both a score and a reference."""
    tau: IntervalEstimate
    """Kendall's tau-b (1945), -1 to 1; 0 for a group that the judge ties."""
    pair_accuracy: IntervalEstimate
    """Of two members with different references, how often the better one has the higher score; a tie counts 0.5.
    For a binary reference this is the AUC within the group."""
    top_1: IntervalEstimate
    """How often the member with the highest score is one of the best by reference; of members tied for the highest
    score, the share that is."""
    advantage_correlation: IntervalEstimate
    """Pearson's r of score and reference, each less its group's mean, as in training with `mean` advantages."""


def agreement(groups: Iterable[TrajectoryGroup] | TrajectoryGroup, reference: str = INDEPENDENT) -> Agreement:
    """The judge's scores compared with a reference, over the members that have both.

    `reference`: a metric, or a metadata field with a number (fields of rows scored from a file are metadata).

    Raises `JudgeError` when no member is judged, or none has the reference, and `GroupError` for anything but groups.
    """
    groups = judged_groups(groups)
    pairs = [score_pairs(group, reference) for group in groups]
    if not any(pairs):
        known = ", ".join(metric_names(groups)) or "none"
        raise JudgeError(f"no judged member has the reference {reference}.", f"What these members have: {known}.")
    return agreement_of_pairs(pairs, reference)


def metric_names(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """Names of the metrics and of the numeric metadata fields of any member, sorted."""
    return sorted({name for group in groups for member in group for name in _numbers(member)})


def _numbers(member: Trajectory) -> Mapping[str, float]:
    """Possible references by name; a metric takes precedence over metadata of the same name."""
    numbers = {name: as_number(value) for name, value in member.metadata.items()}
    return {name: value for name, value in numbers.items() if value is not None} | member.metrics


def reference_value(member: Trajectory, reference: str) -> float | None:
    """The member's reference; None where it has none, or one that is not finite."""
    value = _numbers(member).get(reference)
    return None if value is None or not math.isfinite(value) else float(value)


def score_pairs(group: TrajectoryGroup, reference: str) -> list[tuple[float, float]]:
    """(score, reference) for each member that has both."""
    found = [(each.judgement and each.judgement.score, reference_value(each, reference)) for each in group]
    return [(score, value) for score, value in found if score is not None and value is not None]


def agreement_of_pairs(groups: Sequence[Pairs], reference: str) -> Agreement:
    """All statistics, from plain numbers."""
    groups = [_rounded(pairs) for pairs in groups]
    return Agreement(
        reference=reference,
        members=sum(map(len, groups)),
        tau=mean_over_groups([kendall_tau(pairs) for pairs in groups]),
        pair_accuracy=mean_over_groups([pair_accuracy(pairs) for pairs in groups]),
        top_1=mean_over_groups([top_1(pairs) for pairs in groups]),
        advantage_correlation=correlation(map(centred_sums, groups)),
    )


def _rounded(pairs: Pairs) -> Pairs:
    return [(round(score, _DIGITS), round(value, _DIGITS)) for score, value in pairs]


def kendall_tau(pairs: Pairs) -> float | None:
    """Tau-b of one group; None where the reference is constant, 0 where the judge ties all members.

    A judge that ties members of different value has told nothing of their order: leaving the group out would reward a
    judge that ties whatever is hard.
    """
    from scipy.stats import kendalltau  # pyright: ignore[reportUnknownVariableType]

    scores, references = [score for score, _ in pairs], [value for _, value in pairs]
    if len(set(references)) < 2 or len(set(scores)) < 2:
        return 0.0 if len(set(references)) > 1 else None
    tau = float(kendalltau(scores, references)[0])  # pyright: ignore[reportArgumentType]
    return None if math.isnan(tau) else tau


def mean_kendall_tau(groups: Iterable[Pairs]) -> float | None:
    """The mean of `kendall_tau` over the groups that have one; None if none has."""
    taus = [tau for tau in map(kendall_tau, groups) if tau is not None]
    return fmean(taus) if taus else None


def pair_accuracy(pairs: Pairs) -> float | None:
    """Of one group; None where the reference is constant."""
    right = [
        0.5 if score == other else float((score > other) == (value > other_value))
        for (score, value), (other, other_value) in combinations(pairs, 2)
        if value != other_value
    ]
    return fmean(right) if right else None


def top_1(pairs: Pairs) -> float | None:
    """Of one group; None where the reference is constant."""
    if len({value for _, value in pairs}) < 2:
        return None
    highest, best = max(score for score, _ in pairs), max(value for _, value in pairs)
    return fmean(float(value == best) for score, value in pairs if score == highest)


Ratings = Sequence[Sequence[float | None]]
"""For each member of one group, the scores by rater; None where a rater gave none."""


@dataclass(frozen=True, slots=True)
class InterRaterReliability:
    raters: tuple[str, ...]
    icc_single: IntervalEstimate
    """ICC(2,1): the share of a single rater's variance that is due to the members. Over members that all rated."""
    icc_mean: IntervalEstimate
    """ICC(2,k): the same for the mean of all k raters."""
    taus: Mapping[tuple[str, str], float | None] = field(default_factory=dict[tuple[str, str], float | None])
    """Kendall's tau-b of each two judges, mean over the groups; empty where the raters are calls."""


def judge_vs_judge(groups: Iterable[TrajectoryGroup] | TrajectoryGroup) -> InterRaterReliability | None:
    """Reliability between the judge models that voted, each by its mean vote for a member; None with fewer than two.

    Raises `JudgeError` when no member is judged, and `GroupError` for anything but groups.
    """
    groups = judged_groups(groups)
    votes = [[{name: fmean(own[name]) for name in own} for own in votes_by_model(group).values()] for group in groups]
    found = _reliability(votes)
    if found is None:
        return None
    taus: dict[tuple[str, str], float | None] = {}
    for one, other in combinations(found.raters, 2):
        both = [[(row[one], row[other]) for row in of if {one, other} <= row.keys()] for of in votes]
        taus[one, other] = mean_kendall_tau(map(_rounded, both))
    return replace(found, taus=taus)


def call_vs_call(groups: Iterable[TrajectoryGroup]) -> InterRaterReliability | None:
    """Reliability between calls: rater n is the n-th score that a judge gave a member; None with fewer than two.

    Calls differ in order of presentation, so position bias counts as error here; ICC(2,k) is the reliability of the
    judge's score, the mean of its calls. Raises `JudgeError` when no member is judged.
    """
    votes = [
        [
            {f"{model} call {n}": score for model, scores in own.items() for n, score in enumerate(scores, 1)}
            for own in votes_by_model(group).values()
        ]
        for group in judged_groups(groups)
    ]
    return _reliability(votes)


def _reliability(votes: Sequence[Sequence[Mapping[str, float]]]) -> InterRaterReliability | None:
    """Of the scores of each group's members by rater; None with fewer than two raters."""
    raters = tuple(dict.fromkeys(name for of in votes for row in of for name in row))
    if len(raters) < 2:
        return None
    ratings = [[[row.get(rater) for rater in raters] for row in of] for of in votes]
    return InterRaterReliability(raters, *intraclass_correlation(ratings))


def intraclass_correlation(groups: Sequence[Ratings]) -> tuple[IntervalEstimate, IntervalEstimate]:
    """ICC(2,1) and ICC(2,k) over the members that every rater scored: two-way random effects, absolute agreement.

    Shrout and Fleiss 1979, cases 2; McGraw and Wong 1996, ICC(A,1) and ICC(A,k), for n members and k raters from the
    mean squares of members R, raters C and the rest E.
    """
    k = next((len(row) for members in groups for row in members), 0)
    if k < 2:
        return UNDEFINED, UNDEFINED
    sums: list[list[float]] = []
    for members in groups:
        rows = [[score for score in row if score is not None] for row in members]
        rows = [row for row in rows if len(row) == k]
        squares = [sum(score**2 for row in rows for score in row), sum(sum(row) ** 2 for row in rows)]
        sums.append([len(rows), *squares, *(sum(row[rater] for row in rows) for rater in range(k))])

    def reliability(j: int) -> IntervalEstimate:
        """(R - E) / (R + (j - 1)E + j(C - E)/n), which is ICC(2,1) for j = k, and ICC(2,k) for j = 1."""

        def statistic(n: "Array", squares: "Array", by_member: "Array", *by_rater: "Array") -> "Array":
            more = defined(n - 1)
            correction = sum(by_rater) ** 2 / (n * k)
            members, raters = by_member / k - correction, sum(each**2 for each in by_rater) / n - correction
            rest = (squares - correction - members - raters) / (more * (k - 1))
            r, c = members / more, raters / (k - 1)
            return (r - rest) / defined(r + (j - 1) * rest + j * (c - rest) / n)

        return estimate(sums, statistic, [own[0] > 0 for own in sums])

    return reliability(k), reliability(1)
