"""The picture of a score: a line from 0 to 1 with the votes, the score, and its standard error to both sides."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, MARGIN = 128, 20, 5
"""In units of the picture; the margin is left and right of the line."""


@dataclass(frozen=True, slots=True)
class ScoreBar:
    """Positions along the line, left to right."""

    score: float
    low: float
    """Of the score less its standard error, not below 0."""
    high: float
    votes: tuple[float, ...]

    @classmethod
    def of(cls, score: float, standard_error: float | None, votes: Sequence[float]) -> "ScoreBar":
        """The picture of a score in [0, 1]; without a standard error, low and high are the score."""
        error = standard_error or 0.0
        return cls(_x(score), _x(score - error), _x(score + error), tuple(map(_x, votes)))


def _x(score: float) -> float:
    return round(MARGIN + (WIDTH - 2 * MARGIN) * min(max(score, 0.0), 1.0), 1)
