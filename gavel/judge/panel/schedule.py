"""The schedule: which members each juror is shown in which call, and in which order.

orders(3, 2, "seed")                      two orders of the group: a shuffle, and its reversal
group_schedule(20, [2], "seed")           2 rounds for one juror, each with every member once, in blocks of at most 8
pair_schedule(4, [2], "seed")             every pair twice, once in each order

Judges favour positions, so positions are balanced: over an even number of orders every member has the same mean
position. The same seed gives the same schedule.
"""

import math
from collections.abc import Collection, Sequence
from itertools import islice
from random import Random

LARGEST_WHOLE = 10
"""A group of up to this many members is shown whole; a larger one in blocks, since a judge reads a long prompt worse
than a short one."""
BLOCK = 8
"""Members of a block, at most."""
OPPONENTS = 8
"""Members that each member is compared with in pairs, or all where they are fewer: all pairs up to 9 members."""

Schedule = list[list[tuple[int, ...]]]
"""For each juror, the members that each of its calls shows, in order."""


def orders(members: int, count: int, seed: str) -> list[tuple[int, ...]]:
    """`count` orders of `range(members)`.

    A seeded shuffle and its reversal; then rotations of the shuffle, evenly spread, each followed by its reversal.
    Over twice as many orders as members the positions form a Latin square; then a new shuffle begins.
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


def group_schedule(
    members: int,
    counts: Sequence[int],
    seed: str,
    in_every_call: Collection[int] = (),
    max_shown: int = LARGEST_WHOLE,
) -> Schedule:
    """`counts[juror]` orders of the whole group for each juror, or as many rounds of blocks.

    Blocks are used for more than `max_shown` members, which is what fits a prompt, and for more than `LARGEST_WHOLE`.
    Orders are balanced over all jurors together. In blocks a juror gets at least 2 rounds, so that its blocks share
    members, unless the members of `in_every_call` (anchors) link all blocks.
    """
    in_blocks = members > min(max_shown, LARGEST_WHOLE)
    rounds_by_juror = [max(2, count) if in_blocks and not in_every_call else count for count in counts]
    total = sum(rounds_by_juror)
    if in_blocks:
        rounds = block_rounds(members, total, seed, in_every_call, min(max_shown, BLOCK))
    else:
        rounds = [[row] for row in orders(members, total, seed)]
    remaining = iter(rounds)
    return [[block for blocks in islice(remaining, count) for block in blocks] for count in rounds_by_juror]


def block_rounds(
    members: int, count: int, seed: str, in_every_call: Collection[int] = (), max_block: int = BLOCK
) -> list[list[tuple[int, ...]]]:
    """`count` partitions of a group into blocks of nearly equal size, at most `max_block`, in the order shown.

    The shuffled members fill a table with one column per block; in each round row r is rotated r steps further. So a
    block shares members with several blocks of the next round, and all blocks are linked. Each member of
    `in_every_call` (fewer than `BLOCK`) fills a row of its own. `orders` of the rows balance the positions in a block.
    """
    dealt = [member for member in range(members) if member not in in_every_call]
    columns = math.ceil(len(dealt) / max(1, max_block - len(in_every_call)))
    dealt = Random(seed).sample(dealt, len(dealt))
    rows = [dealt[start : start + columns] for start in range(0, len(dealt), columns)]
    rows += [[member] * columns for member in sorted(in_every_call)]
    rounds: list[list[tuple[int, ...]]] = []
    for turn, order in enumerate(orders(len(rows), count, seed)):
        blocks: list[list[int]] = [[] for _ in range(columns)]
        for row in order:
            for column, member in enumerate(rows[row]):
                blocks[(column + turn * row) % columns].append(member)
        rounds.append([tuple(block) for block in blocks if len(block) > 1])  # one member alone is not compared
    return rounds


def pair_schedule(members: int, counts: Sequence[int], seed: str) -> Schedule:
    """`counts[juror]` times every pair for each juror, in the order shown.

    The members are shuffled onto a circle, and each is compared with those at certain distances on both sides: so all
    are in equally many pairs, and first in half of them (except for one pair when an even number all meet). Distance 1
    links all members. Every second showing of a pair, counted over all jurors, is reversed.
    """
    circle = Random(seed).sample(range(members), members)
    forward: list[tuple[int, ...]] = []
    for distance in _distances(members):
        starts = members // 2 if 2 * distance == members else members
        forward += [(circle[start], circle[(start + distance) % members]) for start in range(starts)]
    backward = [pair[::-1] for pair in forward]
    schedule: Schedule = []
    turn = 0
    for count in counts:
        schedule.append([pair for n in range(turn, turn + count) for pair in (backward if n % 2 else forward)])
        turn += count
    return schedule


def _distances(members: int) -> list[int]:
    """All distances, or `OPPONENTS` / 2 of them, evenly spread: near and far links keep chains short."""
    if members <= OPPONENTS + 1:
        return list(range(1, members // 2 + 1))
    count, farthest = OPPONENTS // 2, (members - 1) // 2
    return [1 + n * (farthest - 1) // (count - 1) for n in range(count)]
