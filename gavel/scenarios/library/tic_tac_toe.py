"""Tic-tac-toe: the policy learns by self-play, on both sides, and is measured against another player.

A task is an opening of two moves; a held-out one has a side for the policy, too, which need not lose. GAVEL_OPPONENT
names who plays the other side of held-out tasks: `random` (the default), `perfect`, or a LiteLLM model.
"""

import itertools
import os
import random
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from gavel.prompts import render
from gavel.scenarios.agent import Agent
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

SIDES = ("X", "O")
LINES = ((1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 4, 7), (2, 5, 8), (3, 6, 9), (1, 5, 9), (3, 5, 7))


@dataclass(frozen=True, slots=True)
class Board:
    """A position, as the cells in the order in which they were taken."""

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
        """The position after a move. Raises `ValueError` for a taken or unknown cell."""
        if cell not in self.free:
            raise ValueError(f"{cell} is not free")
        return Board((*self.moves, cell))

    def points(self, side: str) -> float:
        """1 for a win, 0.5 for a draw, 0 for a loss."""
        return 0.5 if self.winner is None else float(self.winner == side)

    def drawn(self) -> str:
        """The board as three lines; a free cell is its number."""
        marks = {cell: SIDES[number % 2] for number, cell in enumerate(self.moves)}
        return "\n".join(" ".join(marks.get(cell, str(cell)) for cell in row) for row in LINES[:3])


def value(board: Board, side: str) -> float:
    """The points of `side` under perfect play from here."""
    x, o = frozenset(board.moves[::2]), frozenset(board.moves[1::2])
    of_x = _value_for_x(x, o)
    return of_x if side == "X" else 1 - of_x


def best_moves(board: Board) -> list[int]:
    """The moves that keep the value under perfect play."""
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


SELF, RANDOM, PERFECT = "self", "random", "perfect"
FOUL, POINTS, AT_BEST = "foul", "points", "points_of_perfect_play"
_OPENINGS = list(itertools.permutations(range(1, 10), 2))
_HELD_OUT = _OPENINGS[::3]
_CELL = re.compile(r"(?<![\w.])[1-9](?![\w.]*\w)")


async def play(model: ChatModel, task: Task, episode: Episode) -> list[Trajectory]:
    """Plays one game. A reply without a free cell loses it. In self-play each side's trajectory is a separate
    member."""
    opening: Any = task.data["opening"]
    board = start = Board(tuple(opening))
    opponent = str(task.data["opponent"])
    own = SIDES if opponent == SELF else (str(task.data["side"]),)
    players: dict[str, Agent] = {}
    for side in SIDES:
        if side in own or opponent not in (RANDOM, PERFECT):
            words = render("scenarios/tic_tac_toe_system.j2", side=side).strip()
            players[side] = Agent(episode, side, system=words, model=None if side in own else opponent)
    loser: str | None = None
    while not board.is_over and loser is None:
        side = board.to_move
        if side in players:
            cell = cell_in(await players[side].ask(f"{board.drawn()}\n\nYour move, {side}."))
        else:
            cell = episode.random.choice(best_moves(board) if opponent == PERFECT else board.free)
        if cell in board.free:
            board = board.after(cell)
        else:
            loser = side
    for side in own:
        points = board.points(side) if loser is None else float(loser != side)
        players[side].trajectory.metrics |= {
            POINTS: points,
            AT_BEST: value(start, side),
            FOUL: loser == side,
            "opponent_foul": loser not in (None, side),
        }
        players[side].tell(f"{board.drawn()}\n\n{_end(side, points, loser)}")
    return [players[side].trajectory for side in own]


def _end(side: str, points: float, loser: str | None) -> str:
    why = "" if loser is None else f" {'You' if loser == side else 'The other side'} named no free cell."
    return {1.0: "You have won.", 0.5: "It is a draw.", 0.0: "You have lost."}[points] + why


def cell_in(words: str) -> int:
    """The last standalone number from 1 to 9; 0 without one."""
    found = _CELL.findall(words)
    return int(found[-1]) if found else 0


def points(trajectory: Trajectory) -> float:
    """1 for a win, 0.5 for a draw, 0 for a loss."""
    return float(trajectory.metrics[POINTS])


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the game scored at least what perfect play guarantees from its opening."""
    return points(trajectory) >= trajectory.metrics[AT_BEST]


def _task(opening: tuple[int, int], **who: Any) -> Task:
    words = f"A game of tic-tac-toe, after X took {opening[0]} and O took {opening[1]}."
    name = "-".join(["game", *map(str, opening), *(who[key] for key in ("side",) if key in who)])
    return Task(id=name, user=words, data={"opening": list(opening), **who})


scenario = Scenario(
    name="tic_tac_toe",
    rollout=play,
    tasks=[_task(opening, opponent=SELF) for opening in _OPENINGS if opening not in _HELD_OUT],
    held_out=[
        _task(opening, opponent=os.environ.get("GAVEL_OPPONENT") or RANDOM, side=side)
        for opening in _HELD_OUT
        for side in SIDES
        if value(Board(opening), side) > 0  # in a lost position every move would be optimal
    ],
    rubric=render("scenarios/tic_tac_toe_rubric.j2").strip(),
    success=succeeded,
    hand_reward=points,
    measures={"won": lambda trajectory: points(trajectory) == 1, "lost": lambda trajectory: points(trajectory) == 0},
)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Plays perfectly."""
    said = opening
    while True:
        said = yield str(best_moves(board_in(said))[0])


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Always takes the middle cell, which is soon taken."""
    while True:
        yield "5"


def board_in(words: str) -> Board:
    """The position of the nine cells at the beginning of a message, in one possible order of moves."""
    cells = re.findall(r"[XO1-9]", words)[:9]
    taken = [[number for number, cell in enumerate(cells, 1) if cell == side] for side in SIDES]
    moves = [cell for pair in itertools.zip_longest(*taken) for cell in pair if cell is not None]
    return Board(tuple(moves))


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
