"""The board of 2048: tiles slide to one side, equal ones that meet become one of twice the value, a new one comes."""

import random
from dataclasses import dataclass
from functools import lru_cache

SIZE = 4
DIRECTIONS = ("up", "down", "left", "right")
_FOURS = 0.1
"""The share of new tiles that are 4; the others are 2."""


@dataclass(frozen=True, slots=True)
class Board:
    """Sixteen numbers, row by row from the top; 0 is an empty cell."""

    cells: tuple[int, ...] = (0,) * (SIZE * SIZE)

    @property
    def largest(self) -> int:
        return max(self.cells)

    @property
    def empty(self) -> list[int]:
        return [at for at, value in enumerate(self.cells) if value == 0]

    def slid(self, direction: str) -> "Board":
        """The board after a move, before a new tile comes; the same board for a move that changes nothing."""
        cells = list(self.cells)
        for line in _LINES[direction]:
            for at, value in zip(line, _merged(tuple(self.cells[at] for at in line)), strict=True):
                cells[at] = value
        return Board(tuple(cells))

    @property
    def moves(self) -> list[str]:
        """The directions that change something."""
        return [direction for direction in DIRECTIONS if self.slid(direction) != self]

    def with_tile(self, dice: random.Random) -> "Board":
        """The board with a new tile in an empty cell."""
        at = dice.choice(self.empty)
        value = 4 if dice.random() < _FOURS else 2
        return Board((*self.cells[:at], value, *self.cells[at + 1 :]))

    def drawn(self) -> str:
        """Four lines; an empty cell is a dot."""
        width = len(str(self.largest))
        rows = [self.cells[at : at + SIZE] for at in range(0, SIZE * SIZE, SIZE)]
        return "\n".join(" ".join((str(value) if value else ".").rjust(width) for value in row) for row in rows)

    @classmethod
    def read(cls, text: str) -> "Board":
        """The board that `drawn` shows."""
        return cls(tuple(0 if part == "." else int(part) for part in text.split()))


@lru_cache(10_000)
def _merged(line: tuple[int, ...]) -> tuple[int, ...]:
    """Four numbers slid to the front; each tile becomes one with at most one other."""
    slid: list[int] = []
    may_merge = False
    for value in filter(None, line):
        if may_merge and slid[-1] == value:
            slid[-1] *= 2
            may_merge = False
        else:
            slid.append(value)
            may_merge = True
    return (*slid, *(0,) * (len(line) - len(slid)))


_ROWS = [tuple(range(at, at + SIZE)) for at in range(0, SIZE * SIZE, SIZE)]
_COLUMNS = [tuple(range(at, SIZE * SIZE, SIZE)) for at in range(SIZE)]
_LINES = {
    "left": _ROWS,
    "right": [line[::-1] for line in _ROWS],
    "up": _COLUMNS,
    "down": [line[::-1] for line in _COLUMNS],
}
"""The cells of each line, beginning at the side to which tiles slide."""
