"""Pairs: which two members are compared with each other, and what the comparisons come to.

A strength is fitted to each member so that the strengths tell the preferences, and its score is its mean probability
of winning against the others. Strengths are comparable only along comparisons: members whom no chain of comparisons
links to the others get no score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MEETINGS = 8
"""How many others a member is compared with, or all where they are fewer: all pairs up to 9 members."""
PRIOR = 0.1
"""The weight, in comparisons, of a draw between each member and an imaginary one of strength 0."""
_STEPS = 50
_EXACT = 1e-10


def pairings(members: int, counts: Sequence[int], seed: str) -> list[list[tuple[int, int]]]:
    """For each juror the pairs that it is shown, each in the order of showing: every pair `counts[juror]` times.

    The members stand in a circle, by lot, and each is compared with those at some distances, on both sides: so it is
    in as many pairs as any other, and first in half of them (but for one pair when all of an even number meet). The
    distance 1 links all. Over the jury every second showing of a pair is reversed.
    """
    circle = Random(seed).sample(range(members), members)
    forward: list[tuple[int, int]] = []
    for distance in _distances(members):
        starts = members // 2 if 2 * distance == members else members
        forward += [(circle[start], circle[(start + distance) % members]) for start in range(starts)]
    backward = [(second, first) for first, second in forward]
    shown: list[list[tuple[int, int]]] = []
    turn = 0
    for count in counts:
        shown.append([pair for n in range(turn, turn + count) for pair in (backward if n % 2 else forward)])
        turn += count
    return shown


def _distances(members: int) -> list[int]:
    """All of them, or as many as `MEETINGS` allows, spread evenly: near and far links keep every chain short."""
    if members <= MEETINGS + 1:
        return list(range(1, members // 2 + 1))
    count, farthest = MEETINGS // 2, (members - 1) // 2
    return [1 + n * (farthest - 1) // (count - 1) for n in range(count)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one call said of two members."""

    first: int
    second: int
    preference: float
    """For the first, in [0, 1]; 1/2 = they are as good as each other."""
    weight: float = 1.0


def preference(first: float, second: float) -> float:
    """The preference that two scores in [0, 1] tell: 1/2 + (first - second)/2.

    It is linear, so that errors which average out over the scores average out over the preferences, and what a place
    adds to a score cancels over both orders. A mere win would throw the distance away and make of noise between two
    equals a full victory.
    """
    return 0.5 + (first - second) / 2


@dataclass(frozen=True, slots=True)
class Rating:
    """A member's standing among those that it is linked with."""

    score: float
    """Mean probability of winning against each of the others, in (0, 1)."""
    standard_error: float | None
    """None where there are no more comparisons than strengths to fit."""


def rate(comparisons: Sequence[Comparison]) -> dict[int, Rating]:
    """The rating of each member of the largest linked set; of nobody when two sets are as large.

    The model is that of Bradley and Terry (1952), P(i beats j) = 1 / (1 + exp(s_j - s_i)), fitted by maximum
    likelihood with preferences as shares of a win, and a `PRIOR` that keeps the strength of who never lost finite
    (Hunter 2004 has the conditions for a maximum without one). The likelihood is strictly concave, so Newton's method,
    with steps halved where they do not gain, finds its one maximum. Only the weights' ratios count.

    The standard error is by the delta method from the observed information, times a dispersion as in any
    quasi-likelihood (Wedderburn 1974): preferences scatter less than wins and losses, and how much they do is read off
    the residuals.
    """
    sets = sorted(_linked(comparisons), key=len, reverse=True)
    if not sets or (len(sets) > 1 and len(sets[0]) == len(sets[1])):
        return {}
    members = sorted(sets[0])
    import numpy as np

    used = [comparison for comparison in comparisons if comparison.first in sets[0]]
    places = {member: place for place, member in enumerate(members)}
    n, count = len(members), len(used)
    design = np.vstack([np.zeros((count, n)), np.eye(n)])
    for row, comparison in enumerate(used):
        design[row, places[comparison.first]] = 1
        design[row, places[comparison.second]] = -1
    told = np.array([comparison.preference for comparison in used] + [0.5] * n)
    weights = np.array([comparison.weight for comparison in used])
    weights /= weights.mean()
    strengths, information = _fit(design, told, np.append(weights, [PRIOR] * n))

    chances = _chance(strengths[:, None] - strengths)
    np.fill_diagonal(chances, 0)
    scores = (chances.sum(axis=1) / (n - 1)).round(9)  # equal members have equal scores, without residue
    if count < n:
        return {member: Rating(float(scores[place]), None) for member, place in places.items()}
    slopes = chances * chances.T / (n - 1)
    gradient = np.diag(slopes.sum(axis=1)) - slopes
    expected = _chance(design[:count] @ strengths)
    residuals = (told[:count] - expected) ** 2 / (expected * (1 - expected))
    dispersion = residuals.sum() / (count - (n - 1)) * (weights**2).mean()
    variances = dispersion * np.einsum("ij,ji->i", gradient, np.linalg.solve(information, gradient.T))
    errors = np.sqrt(variances)
    return {member: Rating(float(scores[place]), float(errors[place])) for member, place in places.items()}


def _linked(comparisons: Sequence[Comparison]) -> list[set[int]]:
    """The sets of members that chains of comparisons link."""
    sets: list[set[int]] = []
    for comparison in comparisons:
        joined = {comparison.first, comparison.second}
        apart = [found for found in sets if not found & joined]
        sets = [*apart, joined.union(*(found for found in sets if found & joined))]
    return sets


def _chance(difference: "np.ndarray") -> "np.ndarray":
    """Of winning, for a difference of strengths."""
    import numpy as np

    return (1 + np.tanh(difference / 2)) / 2


def _fit(design: "np.ndarray", told: "np.ndarray", weights: "np.ndarray") -> tuple["np.ndarray", "np.ndarray"]:
    """The strengths that make `told` likeliest, and the observed information there."""
    import numpy as np

    def loss(strengths: "np.ndarray") -> float:
        differences = design @ strengths
        return float(weights @ (np.logaddexp(0, differences) - told * differences))

    def information(chances: "np.ndarray") -> "np.ndarray":
        return design.T @ (design * (weights * chances * (1 - chances))[:, None])

    strengths = np.zeros(design.shape[1])
    chances = _chance(design @ strengths)
    for _ in range(_STEPS):
        gradient = design.T @ (weights * (told - chances))
        if np.abs(gradient).max() < _EXACT:
            break
        step = np.linalg.solve(information(chances), gradient)
        reached = loss(strengths)
        while loss(strengths + step) > reached and np.abs(step).max() > _EXACT:
            step /= 2
        strengths = strengths + step
        chances = _chance(design @ strengths)
    return strengths, information(chances)
