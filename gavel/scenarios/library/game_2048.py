"""2048: slide the tiles of a board, and make a 64 within the allowed moves.

The positions of new tiles follow from the task, so two attempts with equal moves see the same boards.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

from gavel.scenarios.library._shared import drawn, move_in, repeating, shipped
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

SIZE = 4
DIRECTIONS = ("up", "down", "left", "right")
TARGET, MAX_TURNS = 64, 43
_ROWS = [range(at, at + SIZE) for at in range(0, SIZE * SIZE, SIZE)]
_COLUMNS = [range(at, SIZE * SIZE, SIZE) for at in range(SIZE)]
_LINES = {"left": _ROWS, "right": [it[::-1] for it in _ROWS], "up": _COLUMNS, "down": [it[::-1] for it in _COLUMNS]}
"""The cells of each line, starting at the side to which tiles slide."""


@dataclass(frozen=True, slots=True)
class Board:
    """Sixteen numbers, row by row from the top; 0 is an empty cell."""

    cells: tuple[int, ...] = (0,) * (SIZE * SIZE)

    @property
    def largest(self) -> int:
        return max(self.cells)

    def slid(self, direction: str) -> "Board":
        """The board after a move, before a new tile appears; unchanged if the move has no effect."""
        cells = list(self.cells)
        for line in _LINES[direction]:
            for at, value in zip(line, _merged(tuple(self.cells[at] for at in line)), strict=True):
                cells[at] = value
        return Board(tuple(cells))

    @property
    def moves(self) -> dict[str, "Board"]:
        """The directions that change something, and the resulting board, before a new tile appears."""
        return {move: after for move in DIRECTIONS if (after := self.slid(move)) != self}

    def with_tile(self, dice: random.Random) -> "Board":
        """The board with a new tile, one in ten a 4, in an empty cell."""
        at = dice.choice([at for at, value in enumerate(self.cells) if value == 0])
        value = 4 if dice.random() < 0.1 else 2
        return Board((*self.cells[:at], value, *self.cells[at + 1 :]))

    def drawn(self) -> str:
        """The board as four lines; an empty cell is a dot."""
        texts = [str(value or ".").rjust(len(str(self.largest))) for value in self.cells]
        return "\n".join(" ".join(texts[at] for at in row) for row in _ROWS)

    @classmethod
    def read(cls, text: str) -> "Board":
        """Parses the board that `drawn` shows in the last four lines of a text."""
        parts = " ".join(text.splitlines()[-SIZE:]).split()
        return cls(tuple(0 if part == "." else int(part) for part in parts))


@lru_cache(10_000)
def _merged(line: tuple[int, ...]) -> tuple[int, ...]:
    """Four numbers slid to the front; each tile merges at most once."""
    slid: list[int] = []
    may_merge = False
    for value in filter(None, line):
        if may_merge := not (may_merge and slid[-1] == value):
            slid.append(value)
        else:
            slid[-1] *= 2
    return (*slid, *(0,) * (len(line) - len(slid)))


class Game:
    async def reset(self, task: Task) -> str:
        self._dice = random.Random(f"2048 {task.data['game']}")
        self._board = Board().with_tile(self._dice).with_tile(self._dice)
        return self._board.drawn()

    async def observe(self, action: str) -> object:
        direction = move_in(action)
        if direction not in DIRECTIONS:
            return f"Say up, down, left or right, and nothing else.\n{self._board.drawn()}"
        slid = self._board.slid(direction)
        if slid == self._board:
            return f"That moves nothing.\n{self._board.drawn()}"
        self._board = slid.with_tile(self._dice)
        if self._board.largest >= TARGET:
            return done(f"You have made {TARGET}.\n{self._board.drawn()}")
        return self._board.drawn() if self._board.moves else done(f"No move is left.\n{self._board.drawn()}")

    def success(self, trajectory: Trajectory) -> bool:
        return self._board.largest >= TARGET

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: the doublings of the largest tile, from 0 for a 2 to 1 for the target."""
        return min(1.0, (self._board.largest.bit_length() - 2) / (TARGET.bit_length() - 2))


def draw_task(number: int) -> Task:
    """The task of a number, always the same one."""
    return Task(id=f"game-{number}", user=f"Make a tile of {TARGET}.", data={"game": number})


scenario = shipped(
    "game_2048",
    *drawn(draw_task, 2000, 400),
    words={"target": TARGET, "moves": MAX_TURNS},
    environment=Game,
    max_turns=MAX_TURNS,
)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Looks two moves ahead, and prefers boards with large tiles and free cells."""
    said = opening
    while True:
        after = Board.read(said).moves
        said = yield max(after, key=lambda move: _promise(after[move], ahead=2))


def _promise(board: Board, ahead: int) -> float:
    """Heuristic value of a board before its new tile: merges made, and possible merges."""
    value = float(sum(cell * cell for cell in board.cells))
    if ahead == 0:
        return value
    return value + max((_promise(after, ahead - 1) for after in board.moves.values()), default=0.0)


PLAYERS: dict[str, Player] = {"expert": expert, "fool": repeating("up", "down")}
