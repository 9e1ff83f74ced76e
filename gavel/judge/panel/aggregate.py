"""Aggregation: the votes of a group become one score per member, by one function for each way of judging.

Each function takes the calls that were answered and scores only members that these calls scored: no mode makes a
number that no judge gave. Scores that were given on different scales are brought to one in three ways:

    _equated(votes)          blocks and jurors that differ by a constant, which common members determine
    _with_one_spread(votes)  jurors that use more or less of the scale, which their spreads in a group tell
    _fit_scale(votes)        a juror whose votes for anchors, of known scores, tell its offset and slope
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, variance

from gavel.judge.panel.standard_errors import Noise, NoisePrior, NoisyVote, residual_noise, standard_errors
from gavel.judge.stats import centred_positions, weighted_mean


@dataclass(frozen=True, slots=True)
class Answer:
    """The scores of one call."""

    call: int
    juror: int
    weight: float
    scores: Mapping[int, float]
    """Member -> score, in the order shown."""
    spreads: Mapping[int, float] = field(default_factory=dict[int, float])
    """Member -> standard deviation of the distribution whose mean its score is; empty for scores in words."""


@dataclass(frozen=True, slots=True)
class AggregateScore:
    """One member's score over all calls."""

    score: float
    """In [0, 1]."""
    standard_error: float | None = None
    degrees_of_freedom: float | None = None
    """Degrees of freedom of the standard error."""
    typical: int | None = None
    """The call whose vote is nearest to the score; None = there is no vote."""


Scores = Mapping[int, AggregateScore | str]
"""Member -> its score, or the reason why its votes give none."""
_MAX_FACTOR = 4.0
"""Largest stretch: a juror that sees hardly a difference is not made to tell a large one."""
_CAUTION = 2.0
"""Degrees of freedom, added to those of a juror's noise, that say its scores are free of noise."""
_RESIDUE = 1e-12
"""A variance below this is floating-point residue."""
_MIN_SLOPE, _MAX_SLOPE = 0.25, 4.0
"""Range of plausible slopes of a juror's scale."""
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
        given, true, slope = _fit_scale([(vote.score, fixed[vote.member]) for vote in own if vote.member in fixed])
        votes += [replace(vote, score=true + (vote.score - given) / slope) for vote in own]
    scores: dict[int, AggregateScore | str] = dict.fromkeys(
        (member for answer in answers for member in answer.scores), "no anchor was scored beside it"
    )
    for member, mean in _means(votes).items():
        scores[member] = replace(mean, score=min(max(mean.score, 0.0), 1.0))
    return scores


def with_spreads(scores: Scores, answers: Sequence[Answer], fixed: Mapping[int, float]) -> Scores:
    """The scores with the spreads of their votes, where they are means of distributions, in the standard errors.

    A judge that answers with a distribution has doubts of its own, which more orders of the same text do not resolve.
    How far its answers differ from order to order is error too, which shrinks with their number. Both add up:

        error² = (error of the mean over orders)² + Σ over jurors of share² · mean(spread²)

    So one call has the distribution's standard deviation as its error, and jurors, whose doubts are their own, halve
    it. `fixed`: scores of anchors, by member; a spread is put on their scale.
    """
    slopes: dict[int, float] = {}
    for juror in {answer.juror for answer in answers}:
        own = [answer.scores for answer in answers if answer.juror == juror]
        votes = [(score, fixed[member]) for scores in own for member, score in scores.items() if member in fixed]
        slopes[juror] = _fit_scale(votes)[2] if votes else 1.0
    combined = dict(scores)
    for member, score in scores.items():
        weights, squares = defaultdict[int, float](float), defaultdict[int, float](float)
        for answer in answers:
            if member in answer.spreads:
                weights[answer.juror] += answer.weight
                squares[answer.juror] += answer.weight * (answer.spreads[member] / slopes[answer.juror]) ** 2
        if isinstance(score, str) or not weights:
            continue
        doubt = math.sqrt(math.fsum(weights[juror] * squares[juror] for juror in weights)) / sum(weights.values())
        between, freedom = score.standard_error or 0.0, score.degrees_of_freedom
        error = math.hypot(between, doubt)
        if freedom is not None:  # Satterthwaite 1946: the doubts are known, not estimated
            freedom = freedom * (error / between) ** 4 if between > _NEGLIGIBLE * error else None
        combined[member] = replace(score, standard_error=error, degrees_of_freedom=freedom)
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
    """The votes of a jury, each juror's stretched about their mean to the jury's common spread.

    With a juror's standard deviation s, the jury's common one S (the geometric mean by weight) and the reliability r,
    the factor is S/s* · r/r̄; it is 1 where a juror's scores are all equal. The logarithm of s* is s's drawn towards S's
    by empirical Bayes: by 2/(n - 1), which is the sampling variance of log s² over n members, over that plus the
    variance of the jurors' true log s² (by moments). So jurors that differ by no more than chance keep their spreads. A
    juror that uses the whole scale would otherwise outvote one that uses little of it, however noisy it is. All is
    estimated within the group, so a score does not depend on which groups were judged before.
    """
    weights = {vote.juror: vote.weight for vote in votes}
    if len(weights) < 2:
        return list(votes)
    means: dict[Hashable, list[float]] = {}
    logs: dict[Hashable, float] = {}
    trust: dict[Hashable, float] = {}
    for juror in weights:
        own = _equated([vote for vote in votes if vote.juror == juror])
        means[juror] = [fmean(vote.score for vote in given) for given in _by_member(own).values()]
        between, noise = variance(means[juror]) if len(means[juror]) > 1 else 0.0, residual_noise(own)
        if between > _RESIDUE:
            logs[juror] = math.log(between)
            trust[juror] = _reliability(between, noise.variance * len(means[juror]) / len(own), noise.df)
    if len(logs) < 2:
        return list(votes)
    total = math.fsum(weights[juror] for juror in logs)
    common = math.fsum(weights[juror] * log for juror, log in logs.items()) / total
    mean_reliability = math.fsum(weights[juror] * trust[juror] for juror in logs) / total
    sampling = {juror: 2 / (len(means[juror]) - 1) for juror in logs}
    between = max(0.0, variance(logs.values()) - math.fsum(sampling.values()) / len(sampling))
    factors: dict[Hashable, float] = {}
    for juror, log in logs.items():
        drawn = common + between / (between + sampling[juror]) * (log - common)
        factors[juror] = min(math.exp((common - drawn) / 2), _MAX_FACTOR) * trust[juror] / mean_reliability
    centre = {juror: fmean(of_juror) for juror, of_juror in means.items()}
    return [
        replace(vote, score=centre[vote.juror] + factors.get(vote.juror, 1.0) * (vote.score - centre[vote.juror]))
        for vote in votes
    ]


def _reliability(between: float, noise: float, df: float) -> float:
    """The share of the variance `between` a juror's means that is not noise; `noise` is the variance of such a mean.

    1 - d/(d + 2)·min(1, noise/between): Kelley's 1 - noise/between, which a few votes estimate badly, is drawn towards
    1 by two degrees of freedom. It is 1 for a juror with one call (d = 0), and never 0.
    """
    return 1 - df / (df + _CAUTION) * min(1.0, noise / between)


def _equated(votes: Sequence[NoisyVote]) -> list[NoisyVote]:
    """The votes on one scale: the offset of each is subtracted from its scores.

    The offsets solve `score = member + offset` by weighted least squares and sum to 0 over all scores, so that the
    mean of the scores stays. Where all scales hold all members, an offset is the scale's mean minus the mean of all.
    Scales that no member links keep their scores relative to each other.
    """
    scales = {scale: n for n, scale in enumerate(dict.fromkeys(vote.scale for vote in votes))}
    if len(scales) < 2:
        return list(votes)
    import numpy as np

    members = {member: n for n, member in enumerate(dict.fromkeys(vote.member for vote in votes))}
    weights = np.zeros((len(scales), len(members)))
    sums = np.zeros_like(weights)
    for vote in votes:
        cell = scales[vote.scale], members[vote.member]
        weights[cell] += vote.weight
        sums[cell] += vote.weight * vote.score
    # The normal equations with the members eliminated, in units of the root of a scale's weight. The eigenvalues lie
    # in [0, 1], with one 0 per set of linked scales; dropping those makes the offsets of each set sum to 0.
    of_member, root = weights.sum(axis=0), np.sqrt(weights.sum(axis=1))
    normal = np.diag(root**2) - weights / of_member @ weights.T
    gaps = (sums - weights * (sums.sum(axis=0) / of_member)).sum(axis=1)
    values, vectors = np.linalg.eigh(normal / np.outer(root, root))
    values, vectors = values[values > 1e-9], vectors[:, values > 1e-9]
    solution = vectors @ (vectors.T @ (gaps / root) / values)
    offsets: list[float] = (solution / root).tolist()
    return (
        [replace(vote, score=vote.score - offsets[scales[vote.scale]]) for vote in votes] if any(offsets) else [*votes]
    )


def _by_member(votes: Sequence[NoisyVote]) -> dict[int, list[NoisyVote]]:
    found: dict[int, list[NoisyVote]] = {}
    for vote in votes:
        found.setdefault(vote.member, []).append(vote)
    return found


def _means(votes: Sequence[NoisyVote], noise_prior: NoisePrior | None = None) -> dict[int, AggregateScore]:
    errors = standard_errors(votes, residual_noise(votes), noise_prior)
    scores: dict[int, AggregateScore] = {}
    for member, own in _by_member(votes).items():
        score = weighted_mean([vote.score for vote in own], [vote.weight for vote in own])
        typical = min(own, key=lambda vote: abs(vote.score - score)).call
        error, freedom = errors.get(member, (None, None))
        scores[member] = AggregateScore(score, error, freedom, typical)
    return scores


def _within_range(scores: dict[int, AggregateScore]) -> dict[int, AggregateScore]:
    """The scores in [0, 1], with their differences kept.

    Equated scores may fall outside, and are known only up to a common constant: so all are shifted by the same amount,
    and compressed only where they span more than 1.
    """
    values = [aggregate.score for aggregate in scores.values()]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low >= 0 and high <= 1:
        return scores
    width = max(1.0, high - low)
    start = low if high - low >= 1 else min(low, max(0.0, high - 1))
    moved: dict[int, AggregateScore] = {}
    for member, aggregate in scores.items():
        error = None if aggregate.standard_error is None else aggregate.standard_error / width
        score = min(max((aggregate.score - start) / width, 0.0), 1.0)
        moved[member] = replace(aggregate, score=score, standard_error=error)
    return moved


def _fit_scale(votes: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The scale of a juror from its votes for anchors, each (score given, true score), at least one: a score that it
    gives, the true one for it, and the change of the given score per unit of the true one.

    Least squares of given on true scores, which leaves the scores of a juror with random errors unbiased. One true
    score alone determines no slope, and a slope outside [`_MIN_SLOPE`, `_MAX_SLOPE`] is noise, or a juror that inverts
    the anchors, and would amplify noise: in both cases the scale only shifts the scores (slope 1).
    """
    given = fmean(vote for vote, _ in votes)
    true = fmean(score for _, score in votes)
    spread = sum((score - true) ** 2 for _, score in votes)
    slope = sum((vote - given) * (score - true) for vote, score in votes) / spread if spread > 1e-9 else 1.0
    return given, true, slope if _MIN_SLOPE <= slope <= _MAX_SLOPE else 1.0
