"""In which orders a group is shown, and what its votes come to.

Judges favour places: over an even number of orders every member's mean place is the middle one, and over more than
two orders the places are spread as a Latin square spreads them.
"""

import math
from collections.abc import Sequence
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
