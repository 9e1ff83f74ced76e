"""Reference-free bias diagnostics: position slope, length correlation, flips and ties.

They are computed from the votes alone, so they say what influences a judge besides the work, not whether it is right.
Lengths are logarithms of character counts, centered within their group as the scores are, so groups may differ in task
length and in scale. A correlation is no proof of bias: longer work may be better work.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from gavel.judge.audit.agreement import reference_value
from gavel.judge.audit.bootstrap import IntervalEstimate, correlation, ratio
from gavel.judge.audit.votes import JudgeCall, distinct_members, judge_calls, judged_groups
from gavel.judge.stats import centred_positions, centred_sums, characters_written
from gavel.scenarios.group import TrajectoryGroup

_SAME = 1e-9
"""Scores closer than this are tied."""


@dataclass(frozen=True, slots=True)
class BiasReport:
    position_slope: IntervalEstimate
    """Score that a single call adds from the middle position to the last, by least squares over the positions; below
    0 it favors the first. Balanced orders cancel it out of the mean."""
    length_correlation: IntervalEstimate
    """Pearson's r of the score and the log of the characters that the agent wrote, each less its group's mean. It may
    be right: longer work may be better."""
    flip_rate: IntervalEstimate
    """Of the pairs of members that two calls of one judge both rank, the share that they rank oppositely."""
    tie_rate: IntervalEstimate
    """Of the pairs of different members of a group, the share with equal scores."""


def bias_report(groups: Iterable[TrajectoryGroup]) -> BiasReport:
    """All diagnostics. Raises `JudgeError` when no member is judged."""
    groups = judged_groups(groups)
    calls = [judge_calls(group) for group in groups]
    return BiasReport(
        position_slope=ratio(map(_slope_sums, calls)),
        length_correlation=length_correlation(groups),
        flip_rate=ratio(map(_flips, calls)),
        tie_rate=ratio(map(_ties, groups)),
    )


def _slope_sums(calls: list[JudgeCall]) -> tuple[float, float]:
    """Σ position·score and Σ position² over the calls."""
    shown = [list(call.scores.values()) for call in calls if call.is_complete]
    sums = [centred_sums([*zip(centred_positions(len(own)), own, strict=True)]) for own in shown]
    return math.fsum(xy for xy, _, _ in sums), math.fsum(xx for _, xx, _ in sums)


def _flips(calls: list[JudgeCall]) -> tuple[float, float]:
    """Pairs of members that two calls of one judge rank oppositely, and all pairs that both calls rank."""
    gaps = [
        (one.scores[a] - one.scores[b], other.scores[a] - other.scores[b])
        for one, other in combinations(calls, 2)
        if one.model == other.model
        for a, b in combinations(sorted(one.scores.keys() & other.scores.keys()), 2)
    ]
    ranked = [gap * other for gap, other in gaps if abs(gap) > _SAME and abs(other) > _SAME]
    return sum(product < 0 for product in ranked), len(ranked)


def _ties(group: TrajectoryGroup) -> tuple[float, float]:
    """Pairs of members with equal scores, and all pairs of scored members."""
    scores = [judgement.score for _, judgement in distinct_members(group) if judgement.score is not None]
    pairs = list(combinations(scores, 2))
    return sum(abs(a - b) <= _SAME for a, b in pairs), len(pairs)


def length_correlation(groups: Iterable[TrajectoryGroup], reference: str | None = None) -> IntervalEstimate:
    """Pearson's r of score, or of the reference, and log(1 + characters written), over all judged members."""

    def pairs(group: TrajectoryGroup) -> Iterator[tuple[float, float]]:
        for member, judgement in distinct_members(group):
            value = judgement.score if reference is None else reference_value(member, reference)
            if value is not None and judgement.score is not None:
                yield math.log1p(characters_written(member)), value

    return correlation(centred_sums(list(pairs(group))) for group in groups)
