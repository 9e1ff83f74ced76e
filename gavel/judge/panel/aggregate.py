"""Aggregation: the votes of a group become one score per member, by one function for each mode of judging.

Each function takes the calls that were answered and scores only members that these calls scored: no mode makes a
number that no judge gave.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from gavel.judge.panel.anchors import fit_scale
from gavel.judge.panel.bradley_terry import Comparison, preference, rate
from gavel.judge.panel.equating import Point, equate
from gavel.judge.stats import mean_and_error


@dataclass(frozen=True, slots=True)
class Answer:
    """The scores of one call."""

    call: int
    juror: int
    weight: float
    scores: Mapping[int, float]
    """By member, in the order shown."""


@dataclass(frozen=True, slots=True)
class AggregateScore:
    """One member's score over all calls."""

    score: float
    """In [0, 1]."""
    standard_error: float | None = None
    typical: int | None = None
    """The call whose vote is nearest to the score; None = there is no vote."""


Scores = Mapping[int, AggregateScore | str]
"""By member: its score, or the reason why its votes give none."""
Aggregate = Callable[[Sequence[Answer], int], Scores]
"""(answers, number of members in the group) -> scores by member."""


def groupwise(answers: Sequence[Answer], members: int) -> dict[int, AggregateScore]:
    """The mean of each member's votes, after equating.

    Judges are harsh or lenient, and in a large group so is each block, but within a group only differences count.
    """
    return _within_range(_means(*_equated(_votes(answers, members))))


def anchored(answers: Sequence[Answer], members: int, fixed: Mapping[int, float]) -> Scores:
    """The mean of each member's votes on the scale of the anchors, whose scores are `fixed` by member.

    The votes that a juror gave to anchors calibrate its scale; an answer without any is dropped. Scores outside [0, 1]
    are clipped, not shifted: the scale is absolute. The standard error is that of the member's votes and leaves out the
    error of the scale, which all members of the group share. A group whose only member is an anchor gets the anchor's
    score.
    """
    if members == 1:
        return {member: AggregateScore(score) for member, score in fixed.items()}
    votes: list[_Vote] = []
    free_offsets = 0
    usable = [answer for answer in answers if answer.scores.keys() & fixed.keys()]
    for juror in dict.fromkeys(answer.juror for answer in usable):
        own, free = _equated(_votes([answer for answer in usable if answer.juror == juror], members))
        scale = fit_scale([(vote.score, fixed[vote.member]) for vote in own if vote.member in fixed])
        votes += [replace(vote, score=scale(vote.score)) for vote in own]
        free_offsets += free
    scores: dict[int, AggregateScore | str] = dict.fromkeys(
        (member for answer in answers for member in answer.scores), "no anchor was scored beside it"
    )
    for member, mean in _means(votes, free_offsets).items():
        scores[member] = replace(mean, score=min(max(mean.score, 0.0), 1.0))
    return scores


def pairwise(answers: Sequence[Answer], members: int) -> Scores:
    """Each member's mean probability of winning against another; every answer scores two members."""
    comparisons: list[Comparison] = []
    preferred: dict[int, dict[int, float]] = {}
    for answer in answers:
        (first, one), (second, other) = answer.scores.items()
        comparison = Comparison(first, second, preference(one, other), answer.weight)
        comparisons.append(comparison)
        preferred.setdefault(first, {})[answer.call] = comparison.preference
        preferred.setdefault(second, {})[answer.call] = 1 - comparison.preference
    scores: dict[int, AggregateScore | str] = dict.fromkeys(
        preferred, "lost comparisons cut it off from most of the group"
    )
    for member, rating in rate(comparisons).items():
        by_call = preferred[member]
        typical = min(by_call, key=lambda call: abs(by_call[call] - rating.score))
        scores[member] = AggregateScore(rating.score, rating.standard_error, typical)
    return scores


@dataclass(frozen=True, slots=True)
class _Vote:
    call: int
    scale: Hashable
    member: int
    score: float
    weight: float


def _votes(answers: Sequence[Answer], members: int) -> list[_Vote]:
    """A juror's calls on the whole group share one scale; each call on a block has its own."""
    return [
        _Vote(a.call, (a.juror, None if len(a.scores) == members else a.call), member, score, a.weight)
        for a in answers
        for member, score in a.scores.items()
    ]


def _equated(votes: Sequence[_Vote]) -> tuple[list[_Vote], int]:
    """The votes on one scale, and the number of offsets that were fitted for it."""
    offsets, fitted = equate([Point(vote.scale, vote.member, vote.score, vote.weight) for vote in votes])
    return [replace(vote, score=vote.score - offsets[vote.scale]) for vote in votes], fitted


def _means(votes: Sequence[_Vote], fitted: int) -> dict[int, AggregateScore]:
    of_member: dict[int, list[_Vote]] = {}
    for vote in votes:
        of_member.setdefault(vote.member, []).append(vote)
    freedom = len(votes) - len(of_member)
    # Fitting offsets reduces the scatter of the votes below their error; this corrects for the lost degrees of freedom.
    inflation = math.sqrt(freedom / (freedom - fitted)) if freedom > fitted else 1.0
    scores: dict[int, AggregateScore] = {}
    for member, own in of_member.items():
        score, error = mean_and_error([vote.score for vote in own], [vote.weight for vote in own])
        typical = min(own, key=lambda vote: abs(vote.score - score)).call
        scores[member] = AggregateScore(score, None if error is None else error * inflation, typical)
    return scores


def _within_range(scores: dict[int, AggregateScore]) -> dict[int, AggregateScore]:
    """The scores in [0, 1], with their differences kept.

    Equated scores may fall outside, and are known only up to a common constant: so all are shifted by the same amount,
    and compressed only where they span more than 1.
    """
    values = [score.score for score in scores.values()]
    if not values or (min(values) >= 0 and max(values) <= 1):
        return scores
    low, high = min(values), max(values)
    width = max(1.0, high - low)
    start = low if high - low >= 1 else min(low, max(0.0, high - 1))

    def moved(aggregate: AggregateScore) -> AggregateScore:
        score = min(max((aggregate.score - start) / width, 0.0), 1.0)
        error = None if aggregate.standard_error is None else aggregate.standard_error / width
        return replace(aggregate, score=score, standard_error=error)

    return {member: moved(score) for member, score in scores.items()}
