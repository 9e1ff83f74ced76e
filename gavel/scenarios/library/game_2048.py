"""2048: slide the tiles of a board, and make a 64 within the allowed moves.

The positions of new tiles follow from the task, so two attempts with equal moves see the same boards.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

from gavel.prompts import render
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

SIZE = 4
DIRECTIONS = ("up", "down", "left", "right")
_FOURS = 0.1
"""Share of new tiles that are 4; the others are 2."""


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
        """The board with a new tile in an empty cell."""
        at = dice.choice(self.empty)
        value = 4 if dice.random() < _FOURS else 2
        return Board((*self.cells[:at], value, *self.cells[at + 1 :]))

    def drawn(self) -> str:
        """The board as four lines; an empty cell is a dot."""
        width = len(str(self.largest))
        rows = [self.cells[at : at + SIZE] for at in range(0, SIZE * SIZE, SIZE)]
        return "\n".join(" ".join((str(value) if value else ".").rjust(width) for value in row) for row in rows)

    @classmethod
    def read(cls, text: str) -> "Board":
        """Parses the board that `drawn` shows."""
        return cls(tuple(0 if part == "." else int(part) for part in text.split()))


@lru_cache(10_000)
def _merged(line: tuple[int, ...]) -> tuple[int, ...]:
    """Four numbers slid to the front; each tile merges at most once."""
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
"""The cells of each line, starting at the side to which tiles slide."""


_TRAIN, _HELD_OUT = range(2000), range(2000, 2400)
TARGET, MAX_TURNS = 64, 43


class Game:
    async def reset(self, task: Task) -> str:
        self._dice = random.Random(f"2048 {task.data['game']}")
        self._board = Board().with_tile(self._dice).with_tile(self._dice)
        return self._board.drawn()

    async def observe(self, action: str) -> object:
        direction = action.strip().strip(".!\"'").casefold()
        if direction not in DIRECTIONS:
            return f"Say up, down, left or right, and nothing else.\n{self._board.drawn()}"
        slid = self._board.slid(direction)
        if slid == self._board:
            return f"That moves nothing.\n{self._board.drawn()}"
        self._board = slid.with_tile(self._dice)
        if self._board.largest >= TARGET:
            return done(f"You have made {TARGET}.\n{self._board.drawn()}")
        if not self._board.moves:
            return done(f"No move is left.\n{self._board.drawn()}")
        return self._board.drawn()

    def success(self, trajectory: Trajectory) -> bool:
        return self._board.largest >= TARGET

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: the doublings of the largest tile, from 0 for a 2 to 1 for the target."""
        return min(1.0, (self._board.largest.bit_length() - 2) / (TARGET.bit_length() - 2))


def draw_task(number: int) -> Task:
    """The task of a number, always the same one."""
    return Task(id=f"game-{number}", user=f"Make a tile of {TARGET}.", data={"game": number})


scenario = Scenario(
    name="game_2048",
    system=render("scenarios/game_2048_system.j2", target=TARGET, moves=MAX_TURNS).strip(),
    environment=Game,
    tasks=DrawnTasks(_TRAIN, draw_task),
    held_out=DrawnTasks(_HELD_OUT, draw_task),
    max_turns=MAX_TURNS,
    rubric=render("scenarios/game_2048_rubric.j2", target=TARGET).strip(),
)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Looks two moves ahead, and prefers boards with large tiles and free cells."""
    said = opening
    while True:
        after = _board_in(said).moves
        said = yield max(after, key=lambda move: _promise(after[move], ahead=2))


def _promise(board: Board, ahead: int) -> float:
    """Heuristic value of a board before its new tile: merges made, and possible merges."""
    value = float(sum(cell * cell for cell in board.cells))
    if ahead == 0:
        return value
    return value + max((_promise(after, ahead - 1) for after in board.moves.values()), default=0.0)


def _board_in(said: str) -> Board:
    return Board.read("\n".join(said.splitlines()[-4:]))


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Alternates between up and down."""
    while True:
        yield "up"
        yield "down"


def wanderer(task: Task, opening: str, dice: random.Random) -> Turns:
    """Moves at random."""
    said = opening
    while True:
        said = yield dice.choice(list(_board_in(said).moves))


def cornerer(task: Task, opening: str, dice: random.Random) -> Turns:
    """Moves left and down, and right only if forced, ignoring the tiles."""
    said = opening
    while True:
        moves = _board_in(said).moves
        said = yield next(move for move in ("left", "down", "right", "up") if move in moves)


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "wanderer": wanderer, "cornerer": cornerer}
