"""Bradley-Terry ratings: scores of members from pairwise comparisons.

A strength is fitted to each member so that differences of strength predict the preferences; its score is its mean
probability of winning against the others. Strengths are comparable only along comparisons: members that no chain of
comparisons links to the majority get no score.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gavel.judge.panel.aggregate import AggregateScore, Answer, Scores

if TYPE_CHECKING:
    import numpy as np

PRIOR = 0.1
"""Weight, in comparisons, of a draw between each member and a fictitious one of strength 0."""
_MAX_STEPS = 50
_TOLERANCE = 1e-10


@dataclass(frozen=True, slots=True)
class Comparison:
    """The preference of one call between two members."""

    first: int
    second: int
    preference: float
    """For the first, in [0, 1]; 1/2 = a draw."""
    weight: float = 1.0


def pairwise(answers: Sequence[Answer]) -> Scores:
    """Each member's mean probability of winning against another. An answer without a score for both tells nothing.

    The preference that two scores express is 1/2 + (first - second)/2. It is linear, so that errors which average out
    over the scores average out over the preferences, and the bonus of a position cancels over both orders. A binary win
    would drop the distance and turn noise between equals into a win.
    """
    comparisons: list[Comparison] = []
    preferred: dict[int, dict[int, float]] = {member: {} for answer in answers for member in answer.scores}
    for answer in answers:
        if len(answer.scores) < 2:
            continue
        (first, one), (second, other) = answer.scores.items()
        preference = 0.5 + (one - other) / 2
        comparisons.append(Comparison(first, second, preference, answer.weight))
        preferred[first][answer.call] = preference
        preferred[second][answer.call] = 1 - preference
    scores: dict[int, AggregateScore | str] = dict.fromkeys(
        preferred, "lost comparisons cut it off from most of the group"
    )
    for member, rated in rate(comparisons).items():
        by_call = preferred[member]
        typical = min(by_call, key=lambda call: abs(by_call[call] - rated.score))
        scores[member] = replace(rated, typical=typical)
    return scores


def rate(comparisons: Sequence[Comparison]) -> dict[int, AggregateScore]:
    """The mean probability of winning against each other member, in (0, 1), for each member of the largest linked set;
    empty when two sets tie for the largest.

    The model is that of Bradley and Terry (1952), P(i beats j) = 1 / (1 + exp(s_j - s_i)), fitted by maximum
    likelihood with preferences as fractional wins, and a `PRIOR` that keeps the strength of an undefeated member finite
    (Hunter 2004 gives the conditions for a maximum without one). The likelihood is strictly concave, so Newton's method
    with step halving finds its only maximum. Only the ratios of the weights matter.

    The standard error is by the delta method from the observed information, times a dispersion estimated from the
    residuals, as in any quasi-likelihood (Wedderburn 1974): preferences scatter less than wins and losses. There is
    none where there are no more comparisons than strengths to fit.
    """
    sets = sorted(_linked(comparisons), key=len, reverse=True)
    if not sets or (len(sets) > 1 and len(sets[0]) == len(sets[1])):
        return {}
    members = sorted(sets[0])
    import numpy as np

    used = [comparison for comparison in comparisons if comparison.first in sets[0]]
    index = {member: n for n, member in enumerate(members)}
    n, count = len(members), len(used)
    design = np.vstack([np.zeros((count, n)), np.eye(n)])
    for row, comparison in enumerate(used):
        design[row, index[comparison.first]] = 1
        design[row, index[comparison.second]] = -1
    observed = np.array([comparison.preference for comparison in used] + [0.5] * n)
    weights = np.array([comparison.weight for comparison in used])
    weights /= weights.mean()
    strengths, information = _fit(design, observed, np.append(weights, [PRIOR] * n))

    chances = _chance(strengths[:, None] - strengths)
    np.fill_diagonal(chances, 0)
    scores = (chances.sum(axis=1) / (n - 1)).round(9)  # rounded, so that equal members tie exactly
    if count < n:
        return {member: AggregateScore(float(scores[i])) for member, i in index.items()}
    slopes = chances * chances.T / (n - 1)
    gradient = np.diag(slopes.sum(axis=1)) - slopes
    expected = _chance(design[:count] @ strengths)
    residuals = (observed[:count] - expected) ** 2 / (expected * (1 - expected))
    dispersion = residuals.sum() / (count - (n - 1)) * (weights**2).mean()
    variances = dispersion * np.einsum("ij,ji->i", gradient, np.linalg.solve(information, gradient.T))
    errors = np.sqrt(variances)
    freedom = count - (n - 1)
    return {member: AggregateScore(float(scores[i]), float(errors[i]), freedom) for member, i in index.items()}


def _linked(comparisons: Sequence[Comparison]) -> list[set[int]]:
    """The connected components of the comparison graph."""
    sets: list[set[int]] = []
    for comparison in comparisons:
        joined = {comparison.first, comparison.second}
        apart = [found for found in sets if not found & joined]
        sets = [*apart, joined.union(*(found for found in sets if found & joined))]
    return sets


def _chance(difference: "np.ndarray") -> "np.ndarray":
    """The probability of winning, by difference of strengths."""
    import numpy as np

    return (1 + np.tanh(difference / 2)) / 2


def _fit(design: "np.ndarray", observed: "np.ndarray", weights: "np.ndarray") -> tuple["np.ndarray", "np.ndarray"]:
    """The maximum-likelihood strengths `[n]`, and the observed information there `[n, n]`."""
    import numpy as np

    def loss(strengths: "np.ndarray") -> float:
        differences = design @ strengths
        return float(weights @ (np.logaddexp(0, differences) - observed * differences))

    def information(chances: "np.ndarray") -> "np.ndarray":
        return design.T @ (design * (weights * chances * (1 - chances))[:, None])

    strengths = np.zeros(design.shape[1])
    chances = _chance(design @ strengths)
    for _ in range(_MAX_STEPS):
        gradient = design.T @ (weights * (observed - chances))
        if np.abs(gradient).max() < _TOLERANCE:
            break
        step = np.linalg.solve(information(chances), gradient)
        before = loss(strengths)
        while loss(strengths + step) > before and np.abs(step).max() > _TOLERANCE:
            step /= 2
        strengths = strengths + step
        chances = _chance(design @ strengths)
    return strengths, information(chances)
