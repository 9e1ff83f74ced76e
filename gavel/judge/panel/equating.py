"""Large groups: shown in small blocks that overlap, and read on one scale.

A judge reads a long prompt worse than a short one, so a group above `LARGEST` is dealt into blocks of at most
`BLOCK`, each round into different ones. Scores from different blocks, or from different judges, may differ by a
constant; members that were scored on both scales tell how much.
"""

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from gavel.judge.panel.schedule import orders

LARGEST = 10
"""Up to here a group is shown whole."""
BLOCK = 8


def showings(
    members: int, counts: Sequence[int], seed: str, everywhere: Collection[int] = (), most: int = LARGEST
) -> list[list[tuple[int, ...]]]:
    """For each juror what it is shown in each call: `counts[juror]` orders of the whole group, or rounds of blocks.

    `most` members fit a prompt; a group of more, or of more than `LARGEST`, is shown in blocks.

    The orders are balanced over the jury, not only over each juror's own. Of a large group a juror is shown at least
    2 rounds, so that its blocks are linked, unless there are members that are shown `everywhere` and link them.
    """
    large = members > min(most, LARGEST)
    rounds_of = [max(2, count) if large and not everywhere else count for count in counts]
    total = sum(rounds_of)
    if large:
        rows = rounds(members, total, seed, everywhere, min(most, BLOCK))
    else:
        rows = [[row] for row in orders(members, total, seed)]
    remaining = iter(rows)
    return [[block for one in islice(remaining, count) for block in one] for count in rounds_of]


def rounds(
    members: int, count: int, seed: str, everywhere: Collection[int] = (), most: int = BLOCK
) -> list[list[tuple[int, ...]]]:
    """`count` ways to cut a group into blocks of about one size, at most `most`, in the order in which they are shown.

    The members lie in a table with a column for each block, and for each round row r is moved r steps further: so a
    block shares members with several blocks of the next round, and all are linked. A member that is shown `everywhere`
    (fewer than `BLOCK` are) has a row to itself. Within a block the rows stand in one of `orders`, which balances the
    places as in a whole group.
    """
    dealt = [member for member in range(members) if member not in everywhere]
    columns = math.ceil(len(dealt) / max(1, most - len(everywhere)))
    dealt = Random(seed).sample(dealt, len(dealt))
    rows = [dealt[start : start + columns] for start in range(0, len(dealt), columns)]
    rows += [[member] * columns for member in sorted(everywhere)]
    cut: list[list[tuple[int, ...]]] = []
    for turn, order in enumerate(orders(len(rows), count, seed)):
        blocks: list[list[int]] = [[] for _ in range(columns)]
        for row in order:
            for column, member in enumerate(rows[row]):
                blocks[(column + turn * row) % columns].append(member)
        cut.append([tuple(block) for block in blocks if len(block) > 1])  # alone, a member is compared with nobody
    return cut


@dataclass(frozen=True, slots=True)
class Point:
    """One score of one member on one scale."""

    scale: Hashable
    member: int
    score: float
    weight: float = 1.0


def equate(points: Sequence[Point]) -> tuple[dict[Hashable, float], int]:
    """The offset of each scale, to be subtracted from its scores, and how many of the offsets are free.

    They solve `score = member + offset` by weighted least squares and come to 0 over all scores, so that the mean of
    the scores stays. Where all scales hold all members, an offset is the scale's mean less the mean of all. Scales
    that no member links stay as they are to each other.
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
    # The normal equations with the members eliminated, in units of the root of a scale's weight: the eigenvalues are
    # 0 to 1, one 0 for each set of linked scales, and leaving these out makes the offsets of each set come to 0.
    of_member, root = weights.sum(axis=0), np.sqrt(weights.sum(axis=1))
    normal = np.diag(root**2) - weights / of_member @ weights.T
    gaps = (sums - weights * (sums.sum(axis=0) / of_member)).sum(axis=1)
    values, vectors = np.linalg.eigh(normal / np.outer(root, root))
    values, vectors = values[values > 1e-9], vectors[:, values > 1e-9]
    solution = vectors @ (vectors.T @ (gaps / root) / values)
    return dict(zip(scales, (solution / root).tolist(), strict=True)), len(values)
