"""Two trajectories of one task beside each other, with what differs marked word by word.

for pair in compared(before, after):
    pair.left, pair.right        # turns' texts as pieces: (text, whether only this side has it)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

from gavel.reports.viewer.transcript import Turn, transcribe
from gavel.scenarios.trajectory import Trajectory

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")
_MOST = 4000
"""Words of a turn that are compared; comparing takes time quadratic in them."""

Pieces = list[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A turn of each side; None where a side has no such turn."""

    left: "tuple[Turn, Pieces] | None"
    right: "tuple[Turn, Pieces] | None"
    same: bool


def compared(left: Trajectory, right: Trajectory) -> list[Pair]:
    """The turns of the main conversations, pair by pair."""
    sides = [[turn for part in _parts(trajectory) for turn in part] for trajectory in (left, right)]
    return [_pair(one, other) for one, other in zip_longest(*sides)]


def differing(left: str, right: str) -> tuple[Pieces, Pieces]:
    """The pieces of both texts; joined, they are the texts."""
    one, other = _PIECES.findall(left), _PIECES.findall(right)
    if len(one) > _MOST or len(other) > _MOST:
        differs = left != right
        return [(left, differs)], [(right, differs)]
    pieces: tuple[Pieces, Pieces] = ([], [])
    for kind, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        for side, words in zip(pieces, (one[a:b], other[c:d]), strict=True):
            if words:
                side.append(("".join(words), kind != "equal"))
    return pieces


def turn_text(turn: Turn) -> str:
    """All that is shown of a turn."""
    calls = [f"{call.name}({call.arguments})" for call in turn.calls]
    return "\n".join(part for part in (turn.reasoning, turn.text, *calls) if part)


def _parts(trajectory: Trajectory) -> Sequence[tuple[Turn, ...]]:
    main = transcribe(trajectory)[0]
    return (main.opening, *main.rounds)


def _pair(one: Turn | None, other: Turn | None) -> Pair:
    left, right = ("" if turn is None else turn_text(turn) for turn in (one, other))
    pieces = differing(left, right)
    return Pair(
        None if one is None else (one, pieces[0]),
        None if other is None else (other, pieces[1]),
        one is not None and other is not None and one.role == other.role and left == right,
    )
