"""Which waiting groups make the next batch: the oldest first, whole groups, exactly as many sequences as asked.

waiting sizes 4 8 4, batch 8   ->   4 4          the oldest group is in it, the 8 waits for the next batch
waiting sizes 6 8,   batch 8   ->   8            no other groups fit beside the oldest
waiting sizes 6,     batch 8   ->   none yet
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group in the queue."""

    id: int
    env_id: int | None
    size: int
    """Sequences."""


def choose_exactly(
    waiting: Sequence[Waiting], batch_size: int, least: Mapping[int, int] | None = None
) -> list[Waiting] | None:
    """Groups of exactly `batch_size` sequences, in their order; None while there are none.

    `least`: sequences that certain environments have in every batch; None too while one of these is missing.
    """
    taken: list[Waiting] = []
    for env_id, wanted in (least or {}).items():
        own = [group for group in waiting if group.env_id == env_id]
        found = 0
        for group in own:
            if found >= wanted:
                break
            taken.append(group)
            found += group.size
        if found < wanted:
            return None
    room = batch_size - sum(group.size for group in taken)
    if room < 0:  # whole groups overshot their shares
        return choose_exactly(waiting, batch_size)
    rest = [group for group in waiting if group not in taken]
    filled = _fill(rest, room)
    if filled is None:
        return choose_exactly(waiting, batch_size) if taken else None
    ids = {group.id for group in [*taken, *filled]}
    return [group for group in waiting if group.id in ids]


def choose_at_least(waiting: Sequence[Waiting], batch_size: int) -> list[Waiting] | None:
    """The oldest groups that have `batch_size` sequences between them; None while they have fewer."""
    taken: list[Waiting] = []
    found = 0
    for group in waiting:
        taken.append(group)
        found += group.size
        if found >= batch_size:
            return taken
    return None


def _fill(waiting: Sequence[Waiting], room: int) -> list[Waiting] | None:
    """Groups of exactly `room` sequences, as old as can be: of two choices, the one with the older first difference."""
    if room == 0:
        return []
    fitting = [group for group in waiting if group.size <= room]
    # reach[at]: the sums (as bits) that groups from `at` on can make
    reach = [1] * (len(fitting) + 1)
    for at in reversed(range(len(fitting))):
        reach[at] = (reach[at + 1] | reach[at + 1] << fitting[at].size) & ((1 << room + 1) - 1)
    if not reach[0] >> room & 1:
        return None
    taken: list[Waiting] = []
    for at, group in enumerate(fitting):
        left = room - group.size
        if left >= 0 and reach[at + 1] >> left & 1:
            taken.append(group)
            room = left
    return taken
