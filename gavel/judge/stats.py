"""Statistics that several wings of the judge share: means with errors, intervals of scores, and centred positions.

mean_and_error([0.2, 0.4], [1.0, 1.0])        (0.3, 0.1)
centred_positions(3)                          [-1.0, 0.0, 1.0]
"""

import math
from collections.abc import Sequence

from gavel.scenarios.judgement import Judgement


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


def score_interval(judgement: Judgement, level: float = 0.9) -> tuple[float, float] | None:
    """The interval in which the score would lie over all orders, with probability `level`; None without an error.

    score ± t·SE with Student's t at the error's degrees of freedom, cut at 0 and 1.
    """
    if judgement.score is None or judgement.standard_error is None:
        return None
    from scipy.stats import norm, t  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    freedom, tail = judgement.degrees_of_freedom, 0.5 + level / 2
    quantile = norm.ppf(tail) if freedom is None else t.ppf(tail, freedom)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    width = float(quantile) * judgement.standard_error  # pyright: ignore[reportUnknownArgumentType]
    return max(0.0, judgement.score - width), min(1.0, judgement.score + width)


def centred_positions(shown: int) -> list[float]:
    """The positions in a prompt of `shown` members, evenly spaced from -1 (first) to 1 (last)."""
    return [2 * position / (shown - 1) - 1 for position in range(shown)] if shown > 1 else [0.0] * shown
