"""Online position bias: the mean score offset of each position in the prompt, updated with every ballot.

Positions are randomized over members, so a mean offset by position is position bias of the judge.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gavel.judge.stats import centred_positions

_MIN_BALLOTS = 50
_MIN_SLOPE = 0.1
_MIN_ERRORS = 4
"""A bias is reported from this many ballots on, when its slope exceeds this score and this many standard errors."""


@dataclass(slots=True)
class PositionBias:
    """Running sums over ballots that show the same number of members."""

    ballots: int = 0
    totals: list[float] = field(default_factory=list[float])
    _squared_slopes: float = 0.0
    """Sum of the squared slopes of single ballots."""

    def add(self, scores: Sequence[float]) -> None:
        """Adds the scores of one ballot, in the order shown."""
        mean = math.fsum(scores) / len(scores)
        totals = self.totals or [0.0] * len(scores)
        offsets = [score - mean for score in scores]
        self.totals = [total + offset for total, offset in zip(totals, offsets, strict=True)]
        self._squared_slopes += _slope(offsets) ** 2
        self.ballots += 1

    @property
    def means(self) -> list[float]:
        """Mean offset from the ballot's mean score, by position."""
        return [total / self.ballots for total in self.totals]

    @property
    def slope(self) -> float:
        """Least-squares slope of the offsets: the score gained from the middle position to the last."""
        return _slope(self.means)

    @property
    def slope_error(self) -> float:
        """Standard error of `slope`: sd/√n of the slopes of at least two ballots.

        It treats ballots as independent. Two reversed orders cancel the effect of the members' quality on the slope,
        so over such pairs the true error is smaller.
        """
        n = self.ballots
        return math.sqrt(max(self._squared_slopes / n - self.slope**2, 0.0) / (n - 1))

    @property
    def is_biased(self) -> bool:
        """Whether the bias is large and significant: over 50 ballots or more, a slope above .1 and above 4 errors."""
        if self.ballots < _MIN_BALLOTS:
            return False
        return abs(self.slope) > max(_MIN_SLOPE, _MIN_ERRORS * self.slope_error)


def bias_warnings(found: Mapping[int, PositionBias], sizes: Iterable[int]) -> list[str]:
    """A sentence for each of these numbers of members shown at which the judge has a significant position bias."""
    biased = {size: bias for size in sorted(sizes) if (bias := found.get(size)) and bias.is_biased}
    return [
        f"this judge has a position bias: of {size} members shown, the last has gained {2 * bias.slope:+.2f} over "
        f"the first ({bias.ballots} ballots); an even number of orders balances its linear part"
        for size, bias in biased.items()
    ]


def _slope(offsets: Sequence[float]) -> float:
    positions = centred_positions(len(offsets))
    squares = math.fsum(position**2 for position in positions)
    products = math.fsum(position * offset for position, offset in zip(positions, offsets, strict=True))
    return products / squares if squares else 0.0
