"""Statistics that several wings of the judge share: a weighted mean with its error, and centred positions.

mean_and_error([0.2, 0.4], [1.0, 1.0])        (0.3, 0.1)
centred_positions(3)                          [-1.0, 0.0, 1.0]
"""

import math
from collections.abc import Sequence


def mean_and_error(scores: Sequence[float], weights: Sequence[float]) -> tuple[float, float | None]:
    """The weighted mean of at least one vote, and its standard error (None with fewer than two votes).

    The error is that of a ratio estimator, sqrt(n/(n-1) · Σ w²(x - mean)²) / Σ w; with equal weights it is the
    usual sd/√n.
    """
    total = math.fsum(weights)
    mean = math.fsum(w * x for w, x in zip(weights, scores, strict=True)) / total
    # Rounded, so that equal votes have exactly their common value as mean.
    mean = min(max(round(mean, 12), min(scores)), max(scores))
    n = len(scores)
    if n < 2:
        return mean, None
    squares = math.fsum((w * (x - mean)) ** 2 for w, x in zip(weights, scores, strict=True))
    return mean, math.sqrt(n / (n - 1) * squares) / total


def centred_positions(shown: int) -> list[float]:
    """The positions in a prompt of `shown` members, evenly spaced from -1 (first) to 1 (last)."""
    return [2 * position / (shown - 1) - 1 for position in range(shown)] if shown > 1 else [0.0] * shown
