"""The board of tic-tac-toe: cells 1 to 9, X first; and how a position ends when both play perfectly."""

from dataclasses import dataclass
from functools import cache

SIDES = ("X", "O")
LINES = ((1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 4, 7), (2, 5, 8), (3, 6, 9), (1, 5, 9), (3, 5, 7))


@dataclass(frozen=True, slots=True)
class Board:
    """A position: the cells in the order in which they were taken."""

    moves: tuple[int, ...] = ()

    @property
    def to_move(self) -> str:
        return SIDES[len(self.moves) % 2]

    @property
    def free(self) -> list[int]:
        return [cell for cell in range(1, 10) if cell not in self.moves]

    @property
    def winner(self) -> str | None:
        for side in (0, 1):
            taken = set(self.moves[side::2])
            if any(taken.issuperset(line) for line in LINES):
                return SIDES[side]
        return None

    @property
    def is_over(self) -> bool:
        return self.winner is not None or not self.free

    def after(self, cell: int) -> "Board":
        """The position after a move. Raises `ValueError` for a cell that is taken or not there."""
        if cell not in self.free:
            raise ValueError(f"{cell} is not free")
        return Board((*self.moves, cell))

    def points(self, side: str) -> float:
        """1 for a won game, 0.5 for a draw, 0 for a lost one."""
        return 0.5 if self.winner is None else float(self.winner == side)

    def drawn(self) -> str:
        """Three lines; a free cell is its number."""
        marks = {cell: SIDES[number % 2] for number, cell in enumerate(self.moves)}
        return "\n".join(" ".join(marks.get(cell, str(cell)) for cell in row) for row in LINES[:3])


def value(board: Board, side: str) -> float:
    """The points of `side` when both play perfectly from here."""
    x, o = frozenset(board.moves[::2]), frozenset(board.moves[1::2])
    of_x = _value_for_x(x, o)
    return of_x if side == "X" else 1 - of_x


def best_moves(board: Board) -> list[int]:
    """The moves that keep what perfect play gives."""
    return [cell for cell in board.free if value(board.after(cell), board.to_move) == value(board, board.to_move)]


@cache
def _value_for_x(x: frozenset[int], o: frozenset[int]) -> float:
    for taken, points in ((x, 1.0), (o, 0.0)):
        if any(taken.issuperset(line) for line in LINES):
            return points
    free = set(range(1, 10)) - x - o
    if not free:
        return 0.5
    if len(x) == len(o):
        return max(_value_for_x(x | {cell}, o) for cell in free)
    return min(_value_for_x(x, o | {cell}) for cell in free)
