"""The scale of a jury: each juror's scores of a group are brought to the jury's common spread, and weighted by how far
its own calls agree.

    narrow = JurorScores([0.45, 0.5, 0.55], reliability=0.9)
    wide = JurorScores([0.0, 0.5, 1.0], reliability=0.3)
    stretch_factors({"narrow": narrow, "wide": wide}, {"narrow": 1, "wide": 1})      {"narrow": 4.26, "wide": 0.18}

A juror that uses the whole scale would otherwise outvote one that uses little of it, however noisy it is. All is
estimated within the group, so a score does not depend on which groups were judged before.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import variance
from typing import TypeVar

_J = TypeVar("_J", bound=Hashable)

_MAX_FACTOR = 4.0
"""Largest stretch: a juror that sees hardly a difference is not made to tell a large one."""
_CAUTION = 2.0
"""Degrees of freedom, added to those of a juror's noise, that say its scores are free of noise."""
_RESIDUE = 1e-12
"""A variance below this is floating-point residue."""


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
    So jurors that differ by no more than chance keep their spreads.
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
