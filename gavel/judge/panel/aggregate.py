"""Aggregation: the votes of a group become one score per member, by one function for each mode of judging.

Each function takes the calls that were answered and scores only members that these calls scored: no mode makes a
number that no judge gave.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, variance

from gavel.judge.panel.bradley_terry import Comparison, preference, rate
from gavel.judge.panel.scales import JurorScores, equate, fit_scale, reliability, stretch_factors
from gavel.judge.panel.standard_errors import Noise, NoisePrior, NoisyVote, residual_noise, standard_errors
from gavel.judge.stats import centred_positions, mean_and_error


@dataclass(frozen=True, slots=True)
class Answer:
    """The scores of one call."""

    call: int
    juror: int
    weight: float
    scores: Mapping[int, float]
    """By member, in the order shown."""
    spreads: Mapping[int, float] = field(default_factory=dict[int, float])
    """By member, standard deviation of the distribution whose mean its score is; empty for scores in words."""


@dataclass(frozen=True, slots=True)
class AggregateScore:
    """One member's score over all calls."""

    score: float
    """In [0, 1]."""
    standard_error: float | None = None
    degrees_of_freedom: float | None = None
    """Of the standard error."""
    typical: int | None = None
    """The call whose vote is nearest to the score; None = there is no vote."""


Scores = Mapping[int, AggregateScore | str]
"""By member: its score, or the reason why its votes give none."""
_NEGLIGIBLE = 1e-3
"""Share of an error below which the differences between orders do not count for its degrees of freedom."""
Aggregate = Callable[[Sequence[Answer], int], Scores]
"""(answers, number of members in the group) -> scores by member."""


def groupwise(
    answers: Sequence[Answer], members: int, noise_prior: NoisePrior | None = None
) -> dict[int, AggregateScore]:
    """The mean of each member's votes, after equating.

    Judges are harsh or lenient, and in a large group so is each block, but within a group only differences count. The
    scores of a jury are brought to one spread first. The standard error is that of `standard_errors.py`.
    """
    return _within_range(_means(_comparable(answers, members), noise_prior))


def group_noise(answers: Sequence[Answer], members: int) -> Noise:
    """The noise of a group's votes as `groupwise` sees it, to fit a prior for other groups."""
    return residual_noise(_comparable(answers, members))


def anchored(answers: Sequence[Answer], members: int, fixed: Mapping[int, float]) -> Scores:
    """The mean of each member's votes on the scale of the anchors, whose scores are `fixed` by member.

    The votes that a juror gave to anchors calibrate its scale; an answer without any is dropped. Scores outside [0, 1]
    are clipped, not shifted: the scale is absolute. The standard error is that of the member's votes and leaves out the
    error of the scale, which all members of the group share. A group whose only member is an anchor gets the anchor's
    score.
    """
    if members == 1:
        return {member: AggregateScore(score) for member, score in fixed.items()}
    votes: list[NoisyVote] = []
    usable = [answer for answer in answers if answer.scores.keys() & fixed.keys()]
    for juror in dict.fromkeys(answer.juror for answer in usable):
        own = _equated(_votes([answer for answer in usable if answer.juror == juror], members))
        scale = fit_scale([(vote.score, fixed[vote.member]) for vote in own if vote.member in fixed])
        votes += [replace(vote, score=scale(vote.score)) for vote in own]
    scores: dict[int, AggregateScore | str] = dict.fromkeys(
        (member for answer in answers for member in answer.scores), "no anchor was scored beside it"
    )
    for member, mean in _means(votes).items():
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
        scores[member] = AggregateScore(rating.score, rating.standard_error, rating.degrees_of_freedom, typical)
    return scores


def with_spreads(scores: Scores, answers: Sequence[Answer], fixed: Mapping[int, float]) -> Scores:
    """The scores with the spreads of their votes, where they are means of distributions, in the standard errors.

    A judge that answers with a distribution has doubts of its own, which more orders of the same text do not resolve.
    How far its answers differ from order to order is error too, which shrinks with their number. Both add up:

        error² = (error of the mean over orders)² + Σ over jurors of share² · mean(spread²)

    So one call has the distribution's standard deviation as its error, and jurors, whose doubts are their own, halve
    it. `fixed`: scores of anchors, by member; a spread is put on their scale.
    """
    slopes = {juror: _slope(answers, juror, fixed) for juror in {answer.juror for answer in answers}}
    combined = dict(scores)
    for member, score in scores.items():
        if isinstance(score, AggregateScore) and any(member in answer.spreads for answer in answers):
            combined[member] = _with_doubt(score, _doubt(member, answers, slopes))
    return combined


def _votes(answers: Sequence[Answer], members: int) -> list[NoisyVote]:
    """A juror's calls on the whole group share one scale; each call on a block has its own."""
    votes: list[NoisyVote] = []
    for answer in answers:
        scale = answer.juror, None if len(answer.scores) == members else answer.call
        positions = centred_positions(len(answer.scores))
        square = sum(position**2 for position in positions) / len(positions)
        for position, (member, score) in zip(positions, answer.scores.items(), strict=True):
            votes.append(
                NoisyVote(
                    member, scale, answer.juror, position, score, answer.weight, position**2 - square, answer.call
                )
            )
    return votes


def _comparable(answers: Sequence[Answer], members: int) -> list[NoisyVote]:
    """The votes of all answers on one scale."""
    return _equated(_with_one_spread(_votes(answers, members)))


def _with_one_spread(votes: Sequence[NoisyVote]) -> list[NoisyVote]:
    """The votes of a jury, each juror's stretched about their mean to the jury's common spread."""
    jurors = {vote.juror: vote.weight for vote in votes}
    if len(jurors) < 2:
        return list(votes)
    scores: dict[Hashable, JurorScores] = {}
    for juror in jurors:
        own = _equated([vote for vote in votes if vote.juror == juror])
        of_member: dict[int, list[float]] = {}
        for vote in own:
            of_member.setdefault(vote.member, []).append(vote.score)
        means, noise = [fmean(given) for given in of_member.values()], residual_noise(own)
        between = variance(means) if len(means) > 1 else 0.0
        scores[juror] = JurorScores(means, reliability(between, noise.variance * len(means) / len(own), noise.df))
    factors = stretch_factors(scores, jurors)
    centre = {juror: fmean(own.means) for juror, own in scores.items()}
    return [
        replace(vote, score=centre[vote.juror] + factors[vote.juror] * (vote.score - centre[vote.juror]))
        for vote in votes
    ]


def _equated(votes: Sequence[NoisyVote]) -> list[NoisyVote]:
    """The votes on one scale."""
    offsets = equate(votes)
    return [replace(vote, score=vote.score - offsets[vote.scale]) for vote in votes]


def _means(votes: Sequence[NoisyVote], noise_prior: NoisePrior | None = None) -> dict[int, AggregateScore]:
    of_member: dict[int, list[NoisyVote]] = {}
    for vote in votes:
        of_member.setdefault(vote.member, []).append(vote)
    errors = standard_errors(votes, residual_noise(votes), noise_prior)
    scores: dict[int, AggregateScore] = {}
    for member, own in of_member.items():
        score, _ = mean_and_error([vote.score for vote in own], [vote.weight for vote in own])
        typical = min(own, key=lambda vote: abs(vote.score - score)).call
        error, freedom = errors.get(member, (None, None))
        scores[member] = AggregateScore(score, error, freedom, typical)
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


def _with_doubt(score: AggregateScore, doubt: float) -> AggregateScore:
    between, freedom = score.standard_error or 0.0, score.degrees_of_freedom
    error = math.hypot(between, doubt)
    if freedom is not None:  # Satterthwaite 1946: the doubts are known, not estimated
        freedom = freedom * (error / between) ** 4 if between > _NEGLIGIBLE * error else None
    return replace(score, standard_error=error, degrees_of_freedom=freedom)


def _doubt(member: int, answers: Sequence[Answer], slopes: Mapping[int, float]) -> float:
    squares: dict[int, list[tuple[float, float]]] = {}
    for answer in answers:
        if member in answer.spreads:
            spread = answer.spreads[member] / slopes[answer.juror]
            squares.setdefault(answer.juror, []).append((answer.weight, spread**2))
    weights = {juror: math.fsum(weight for weight, _ in of_juror) for juror, of_juror in squares.items()}
    total = math.fsum(weights.values())
    parts = [
        (weights[juror] / total) ** 2 * math.fsum(weight * square for weight, square in of_juror) / weights[juror]
        for juror, of_juror in squares.items()
    ]
    return math.sqrt(math.fsum(parts))


def _slope(answers: Sequence[Answer], juror: int, fixed: Mapping[int, float]) -> float:
    """By how much the juror's scores change with the scale of the anchors; 1 without anchors."""
    own = [answer.scores for answer in answers if answer.juror == juror]
    votes = [(score, fixed[member]) for scores in own for member, score in scores.items() if member in fixed]
    return fit_scale(votes).slope if votes else 1.0
