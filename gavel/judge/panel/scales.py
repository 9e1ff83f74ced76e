"""Scales: three ways to bring scores that were given on different scales to one.

equate(votes)                    blocks and jurors that differ by a constant, which common members determine
stretch_factors(scores, weights) jurors that use more or less of the scale, which their spreads in a group tell
fit_scale(votes)                 a juror whose votes for anchors, of known scores, tell its offset and slope
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TypeVar

from gavel.judge.panel.standard_errors import NoisyVote

_J = TypeVar("_J", bound=Hashable)

_MAX_FACTOR = 4.0
"""Largest stretch: a juror that sees hardly a difference is not made to tell a large one."""
_CAUTION = 2.0
"""Degrees of freedom, added to those of a juror's noise, that say its scores are free of noise."""
_RESIDUE = 1e-12
"""A variance below this is floating-point residue."""
MIN_SLOPE, MAX_SLOPE = 0.25, 4.0
"""Range of plausible slopes of a juror's scale."""


def equate(votes: Sequence[NoisyVote]) -> dict[Hashable, float]:
    """The offset of each scale, to be subtracted from its scores.

    The offsets solve `score = member + offset` by weighted least squares and sum to 0 over all scores, so that the
    mean of the scores stays. Where all scales hold all members, an offset is the scale's mean minus the mean of all.
    Scales that no member links keep their scores relative to each other.
    """
    scales = {scale: n for n, scale in enumerate(dict.fromkeys(vote.scale for vote in votes))}
    if len(scales) < 2:
        return dict.fromkeys(scales, 0.0)
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
    return dict(zip(scales, (solution / root).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class JurorScores:
    """One juror's scores of a group."""

    means: Sequence[float]
    """Of its votes, by member."""
    reliability: float = 1.0
    """Share of their variance that is not noise, above 0."""

    @property
    def variance(self) -> float:
        found = variance(self.means) if len(self.means) > 1 else 0.0
        return found if found > _RESIDUE else 0.0


def reliability(between: float, noise: float, df: float) -> float:
    """The share of the variance `between` a juror's means that is not noise; `noise` is the variance of such a mean.

    1 - d/(d + 2)·min(1, noise/between): Kelley's 1 - noise/between, which a few votes estimate badly, is drawn towards
    1 by two degrees of freedom. It is 1 for a juror with one call (d = 0), and never 0.
    """
    return 1 - df / (df + _CAUTION) * min(1.0, noise / between) if between > _RESIDUE else 1.0


def stretch_factors(scores: Mapping[_J, JurorScores], weights: Mapping[_J, float]) -> dict[_J, float]:
    """The factor by which each juror's scores are stretched about their mean; 1 where a juror's scores are all equal.

    With a juror's standard deviation s, the jury's common one S (the geometric mean by weight) and the reliability r,
    the factor is S/s* · r/r̄. The logarithm of s* is s's drawn towards S's by empirical Bayes: by 2/(n - 1), which is
    the sampling variance of log s² over n members, over that plus the variance of the jurors' true log s² (by moments).
    So jurors that differ by no more than chance keep their spreads. A juror that uses the whole scale would otherwise
    outvote one that uses little of it, however noisy it is. All is estimated within the group, so a score does not
    depend on which groups were judged before.
    """
    factors = dict.fromkeys(scores, 1.0)
    logs = {juror: math.log(own.variance) for juror, own in scores.items() if own.variance}
    if len(logs) < 2:
        return factors
    total = math.fsum(weights[juror] for juror in logs)
    common = math.fsum(weights[juror] * log for juror, log in logs.items()) / total
    mean_reliability = math.fsum(weights[juror] * scores[juror].reliability for juror in logs) / total
    sampling = {juror: 2 / (len(scores[juror].means) - 1) for juror in logs}
    between = max(0.0, variance(logs.values()) - math.fsum(sampling.values()) / len(sampling))
    for juror, log in logs.items():
        drawn = common + between / (between + sampling[juror]) * (log - common)
        stretch = min(math.exp((common - drawn) / 2), _MAX_FACTOR)
        factors[juror] = stretch * scores[juror].reliability / mean_reliability
    return factors


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A line that maps a juror's scores to the scale of the anchors; called with a score."""

    given: float = 0.0
    true: float = 0.0
    slope: float = 1.0
    """Change of the juror's score per unit of the true score."""

    def __call__(self, score: float) -> float:
        return self.true + (score - self.given) / self.slope


def fit_scale(votes: Sequence[tuple[float, float]]) -> LinearScale:
    """The scale of a juror from its votes for anchors, each (score given, true score); at least one.

    Least squares of given on true scores, which leaves the scores of a juror with random errors unbiased. One true
    score alone determines no slope, and a slope outside [`MIN_SLOPE`, `MAX_SLOPE`] is noise, or a juror that inverts
    the anchors, and would amplify noise: in both cases the scale only shifts the scores (slope 1).
    """
    given = fmean(vote for vote, _ in votes)
    true = fmean(score for _, score in votes)
    spread = sum((score - true) ** 2 for _, score in votes)
    slope = sum((vote - given) * (score - true) for vote, score in votes) / spread if spread > 1e-9 else 1.0
    return LinearScale(given, true, slope if MIN_SLOPE <= slope <= MAX_SLOPE else 1.0)
