"""What the votes of a group come to: one function for each mode of judging.

Each takes the calls that were answered and gives the members that were scored in them their standings: no mode can make
a number that no judge gave.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from gavel.judge.panel.anchors import level
from gavel.judge.panel.bradley_terry import Comparison, preference, rate
from gavel.judge.panel.equating import Point, equate
from gavel.judge.panel.schedule import mean_and_error


@dataclass(frozen=True, slots=True)
class Answer:
    """The scores of one call."""

    call: int
    juror: int
    weight: float
    scores: Mapping[int, float]
    """By member, in the order shown."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What all calls come to for one member."""

    score: float
    """In [0, 1]."""
    standard_error: float | None = None
    typical: int | None = None
    """The call whose vote is nearest to the score; None = there is no vote."""


Combine = Callable[[Sequence[Answer], int], Mapping[int, Standing | str]]
"""(answers, members of the group) -> standings by member, or why its votes come to no score."""


def groupwise(answers: Sequence[Answer], members: int) -> dict[int, Standing]:
    """The mean of each member's votes, after they were brought to one scale.

    Judges are harsh or lenient, and in a large group so is each block, but within a group only differences count.
    """
    return _within_range(_means(*_equated(_votes(answers, members))))


def anchored(answers: Sequence[Answer], members: int, fixed: Mapping[int, float]) -> Mapping[int, Standing | str]:
    """The mean of each member's votes on the scale of the anchors, whose scores are `fixed` by member.

    Each juror's scale is set by the votes that it gave to anchors; an answer without any is left out. A score that
    falls outside [0, 1] is cut off, not moved: the scale is absolute. The standard error is that of the member's votes
    and leaves out the scale's own, which all members of the group share. A group that is nothing but one anchor has
    that anchor's score.
    """
    if members == 1:
        return {member: Standing(score) for member, score in fixed.items()}
    votes: list[_Vote] = []
    free = 0
    usable = [answer for answer in answers if answer.scores.keys() & fixed.keys()]
    for juror in dict.fromkeys(answer.juror for answer in usable):
        own, fitted = _equated(_votes([answer for answer in usable if answer.juror == juror], members))
        line = level([(vote.score, fixed[vote.member]) for vote in own if vote.member in fixed])
        votes += [replace(vote, score=line(vote.score)) for vote in own]
        free += fitted
    means = _means(votes, free)
    cut = {member: replace(mean, score=min(max(mean.score, 0.0), 1.0)) for member, mean in means.items()}
    return dict.fromkeys((member for a in answers for member in a.scores), "no anchor was scored beside it") | cut


def pairwise(answers: Sequence[Answer], members: int) -> Mapping[int, Standing | str]:
    """Each member's mean probability of winning against another; every answer is of two members."""
    comparisons: list[Comparison] = []
    preferred: dict[int, dict[int, float]] = {}
    for answer in answers:
        (first, one), (second, other) = answer.scores.items()
        comparison = Comparison(first, second, preference(one, other), answer.weight)
        comparisons.append(comparison)
        preferred.setdefault(first, {})[answer.call] = comparison.preference
        preferred.setdefault(second, {})[answer.call] = 1 - comparison.preference
    standings: dict[int, Standing | str] = dict.fromkeys(
        preferred, "lost comparisons cut it off from most of the group"
    )
    for member, rating in rate(comparisons).items():
        told = preferred[member]
        typical = min(told, key=lambda call: abs(told[call] - rating.score))
        standings[member] = Standing(rating.score, rating.standard_error, typical)
    return standings


@dataclass(frozen=True, slots=True)
class _Vote:
    call: int
    scale: Hashable
    member: int
    score: float
    weight: float


def _votes(answers: Sequence[Answer], members: int) -> list[_Vote]:
    """A juror's calls on the whole group share a scale; a call on a block has its own."""
    return [
        _Vote(a.call, (a.juror, None if len(a.scores) == members else a.call), member, score, a.weight)
        for a in answers
        for member, score in a.scores.items()
    ]


def _equated(votes: Sequence[_Vote]) -> tuple[list[_Vote], int]:
    """The votes on one scale, and how many offsets were fitted to bring them there."""
    offsets, fitted = equate([Point(vote.scale, vote.member, vote.score, vote.weight) for vote in votes])
    return [replace(vote, score=vote.score - offsets[vote.scale]) for vote in votes], fitted


def _means(votes: Sequence[_Vote], fitted: int) -> dict[int, Standing]:
    of_member: dict[int, list[_Vote]] = {}
    for vote in votes:
        of_member.setdefault(vote.member, []).append(vote)
    freedom = len(votes) - len(of_member)
    # Votes that were fitted to each other scatter less than they err.
    stretch = math.sqrt(freedom / (freedom - fitted)) if freedom > fitted else 1.0
    standings: dict[int, Standing] = {}
    for member, own in of_member.items():
        score, error = mean_and_error([vote.score for vote in own], [vote.weight for vote in own])
        typical = min(own, key=lambda vote: abs(vote.score - score)).call
        standings[member] = Standing(score, None if error is None else error * stretch, typical)
    return standings


def _within_range(standings: dict[int, Standing]) -> dict[int, Standing]:
    """The standings with scores in [0, 1] and their differences kept.

    Scores that were brought to one scale may lie outside; what is between scales is known but for a constant, so all
    are moved by one, and drawn together only where they span more than 1.
    """
    scores = [standing.score for standing in standings.values()]
    if not scores or (min(scores) >= 0 and max(scores) <= 1):
        return standings
    low, high = min(scores), max(scores)
    width = max(1.0, high - low)
    start = low if high - low >= 1 else min(low, max(0.0, high - 1))

    def moved(standing: Standing) -> Standing:
        score = min(max((standing.score - start) / width, 0.0), 1.0)
        error = None if standing.standard_error is None else standing.standard_error / width
        return replace(standing, score=score, standard_error=error)

    return {member: moved(standing) for member, standing in standings.items()}
