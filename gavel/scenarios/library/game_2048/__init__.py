"""2048: slide the tiles of a board, and make one of 64 before the moves are used up.

Where new tiles come follows from the task, so two attempts that move alike see the same boards.
"""

import random

from gavel.prompts import render
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.library.game_2048.board import DIRECTIONS, Board
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(2000), range(2000, 2400)
TARGET, MAX_TURNS = 64, 43


class Game:
    """One game."""

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
        """What somebody might write by hand: the doublings of the largest tile, from 0 for a 2 to 1 for the target."""
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
