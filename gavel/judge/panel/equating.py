"""Equating: brings scores that were given on different scales to one scale.

Scores from different blocks of a group, or from different judges, may differ by a constant; members that were scored
on both scales determine that constant.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """One score of one member on one scale."""

    scale: Hashable
    member: int
    score: float
    weight: float = 1.0


def equate(points: Sequence[Point]) -> tuple[dict[Hashable, float], int]:
    """The offset of each scale, to be subtracted from its scores, and the number of free offsets.

    The offsets solve `score = member + offset` by weighted least squares and sum to 0 over all scores, so that the
    mean of the scores stays. Where all scales hold all members, an offset is the scale's mean minus the mean of all.
    Scales that no member links keep their scores relative to each other.
    """
    scales = {scale: n for n, scale in enumerate(dict.fromkeys(point.scale for point in points))}
    if len(scales) < 2:
        return dict.fromkeys(scales, 0.0), 0
    import numpy as np

    members = {member: n for n, member in enumerate(dict.fromkeys(point.member for point in points))}
    weights = np.zeros((len(scales), len(members)))
    sums = np.zeros_like(weights)
    for point in points:
        cell = scales[point.scale], members[point.member]
        weights[cell] += point.weight
        sums[cell] += point.weight * point.score
    # The normal equations with the members eliminated, in units of the root of a scale's weight. The eigenvalues lie
    # in [0, 1], with one 0 per set of linked scales; dropping those makes the offsets of each set sum to 0.
    of_member, root = weights.sum(axis=0), np.sqrt(weights.sum(axis=1))
    normal = np.diag(root**2) - weights / of_member @ weights.T
    gaps = (sums - weights * (sums.sum(axis=0) / of_member)).sum(axis=1)
    values, vectors = np.linalg.eigh(normal / np.outer(root, root))
    values, vectors = values[values > 1e-9], vectors[:, values > 1e-9]
    solution = vectors @ (vectors.T @ (gaps / root) / values)
    return dict(zip(scales, (solution / root).tolist(), strict=True)), len(values)
