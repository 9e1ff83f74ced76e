"""In which orders a group is shown, and what its votes come to.

Judges favour places: over an even number of orders every member's mean place is the middle one, and over more than
two orders the places are spread as a Latin square spreads them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random


def orders(members: int, count: int, seed: str) -> list[tuple[int, ...]]:
    """`count` orders of `range(members)`, the same for the same seed.

    A seeded shuffle and its reversal; then the shuffle rotated, and that reversed; and so on, with the rotations
    spread evenly. After every rotation has been used a new shuffle begins.
    """
    random = Random(seed)
    pairs = (count + 1) // 2
    rows: list[tuple[int, ...]] = []
    while len(rows) < count:
        shuffled = random.sample(range(members), members)
        rotations = max(1, min(members, pairs - len(rows) // 2))
        for turn in range(rotations):
            by = turn * members // rotations
            row = (*shuffled[by:], *shuffled[:by])
            rows += [row, row[::-1]]
    return rows[:count]


def mean_and_error(scores: Sequence[float], weights: Sequence[float]) -> tuple[float, float | None]:
    """The weighted mean of at least one vote, and its standard error (None with fewer than two votes).

    The error is that of a ratio estimator, sqrt(n/(n-1) · Σ w²(x - mean)²) / Σ w; with equal weights it is the
    usual sd/√n.
    """
    total = math.fsum(weights)
    mean = math.fsum(w * x for w, x in zip(weights, scores, strict=True)) / total
    mean = min(max(round(mean, 12), min(scores)), max(scores))  # equal votes make equal means, without residue
    n = len(scores)
    if n < 2:
        return mean, None
    squares = math.fsum((w * (x - mean)) ** 2 for w, x in zip(weights, scores, strict=True))
    return mean, math.sqrt(n / (n - 1) * squares) / total


@dataclass(slots=True)
class SlotMeans:
    """How much each place has been favoured so far, with the same number of members shown.

    Members come to their places by lot, so what a place gains over its ballot's mean is the judge's doing.
    """

    ballots: int = 0
    totals: list[float] = field(default_factory=list)
    _squares: float = 0.0
    """Sum of the squares of the ballots' own slopes."""

    def add(self, scores: Sequence[float]) -> None:
        """The scores of one ballot, in the order shown."""
        mean = math.fsum(scores) / len(scores)
        totals = self.totals or [0.0] * len(scores)
        gains = [score - mean for score in scores]
        self.totals = [total + gain for total, gain in zip(totals, gains, strict=True)]
        self._squares += _slope(gains) ** 2
        self.ballots += 1

    @property
    def means(self) -> list[float]:
        """Mean difference from the ballot's mean, in score, by place."""
        return [total / self.ballots for total in self.totals]

    @property
    def slope(self) -> float:
        """Score gained from the middle place to the last, by least squares over the places."""
        return _slope(self.means)

    @property
    def slope_error(self) -> float:
        """The standard error of `slope`: sd/√n of the slopes of at least two ballots.

        It takes ballots for independent. Of two reversed orders what the members' qualities make of the slope cancels
        out, so over such pairs the true error is smaller.
        """
        n = self.ballots
        return math.sqrt(max(self._squares / n - self.slope**2, 0.0) / (n - 1))

    @property
    def is_biased(self) -> bool:
        """Whether places surely matter to the judge: over 50 ballots or more, a slope above .1 and 4 of its errors."""
        return self.ballots >= 50 and abs(self.slope) > max(0.1, 4 * self.slope_error)


def _slope(gains: Sequence[float]) -> float:
    places = centred_places(len(gains))
    squares = math.fsum(place**2 for place in places)
    return math.fsum(place * gain for place, gain in zip(places, gains, strict=True)) / squares if squares else 0.0


def centred_places(shown: int) -> list[float]:
    """The places of a prompt from -1 (first) to 1 (last)."""
    return [2 * place / (shown - 1) - 1 for place in range(shown)] if shown > 1 else [0.0] * shown
