"""Tic-tac-toe: the policy learns by self-play, on both sides, and is measured against another player.

A task is an opening of two moves; a held-out one has a side for the policy, too, which need not lose. GAVEL_OPPONENT
names who plays the other side of held-out tasks: `random` (the default), `perfect`, or a LiteLLM model.
"""

import itertools
import os
import random
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from gavel.prompts import render
from gavel.scenarios.agent import Agent
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.episode import Episode
from gavel.scenarios.library._shared import repeating, shipped
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
        return next((side for at, side in enumerate(SIDES) if _has_line(self.moves[at::2])), None)

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


def _has_line(cells: Collection[int]) -> bool:
    return any(set(line).issubset(cells) for line in LINES)


def value(board: Board, side: str) -> float:
    """The points of `side` under perfect play from here."""
    last, before = frozenset(board.moves[-1::-2]), frozenset(board.moves[-2::-2])
    to_move = _best_points(before, last)
    return to_move if side == board.to_move else 1 - to_move


def best_moves(board: Board) -> list[int]:
    """The moves that keep the value under perfect play."""
    return [cell for cell in board.free if value(board.after(cell), board.to_move) == value(board, board.to_move)]


@cache
def _best_points(own: frozenset[int], other: frozenset[int]) -> float:
    """The points of the side to move."""
    if _has_line(other):
        return 0.0
    free = set(range(1, 10)) - own - other
    return max((1 - _best_points(other, own | {cell}) for cell in free), default=0.5)


SELF, RANDOM, PERFECT = "self", "random", "perfect"
_OPENINGS = list(itertools.permutations(range(1, 10), 2))
_HELD_OUT = _OPENINGS[::3]


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
        metrics = players[side].trajectory.metrics
        metrics |= {"points": points, "points_of_perfect_play": value(start, side)}
        metrics |= {"foul": loser == side, "opponent_foul": loser not in (None, side)}
        players[side].tell(f"{board.drawn()}\n\n{_end(side, points, loser)}")
    return [players[side].trajectory for side in own]


def _end(side: str, points: float, loser: str | None) -> str:
    why = "" if loser is None else f" {'You' if loser == side else 'The other side'} named no free cell."
    return {1.0: "You have won.", 0.5: "It is a draw.", 0.0: "You have lost."}[points] + why


def cell_in(words: str) -> int:
    """The last standalone number from 1 to 9; 0 without one."""
    found = re.findall(r"(?<![\w.])[1-9](?![\w.]*\w)", words)
    return int(found[-1]) if found else 0


def points(trajectory: Trajectory) -> float:
    """1 for a win, 0.5 for a draw, 0 for a loss."""
    return float(trajectory.metrics["points"])


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the game scored at least what perfect play guarantees from its opening."""
    return points(trajectory) >= trajectory.metrics["points_of_perfect_play"]


def _task(opening: tuple[int, int], **who: Any) -> Task:
    words = f"A game of tic-tac-toe, after X took {opening[0]} and O took {opening[1]}."
    name = "-".join(["game", *map(str, opening), *(who[key] for key in ("side",) if key in who)])
    return Task(id=name, user=words, data={"opening": list(opening), **who})


scenario = shipped(
    "tic_tac_toe",
    [_task(opening, opponent=SELF) for opening in _OPENINGS if opening not in _HELD_OUT],
    [
        _task(opening, opponent=os.environ.get("GAVEL_OPPONENT") or RANDOM, side=side)
        for opening in _HELD_OUT
        for side in SIDES
        if value(Board(opening), side) > 0  # in a lost position every move would be optimal
    ],
    system="",
    rollout=play,
    success=succeeded,
    hand_reward=points,
    measures={"won": lambda trajectory: points(trajectory) == 1, "lost": lambda trajectory: points(trajectory) == 0},
)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Plays perfectly."""
    said = opening
    while True:
        cells = re.findall(r"[XO1-9]", said)[:9]
        taken = [[number for number, cell in enumerate(cells, 1) if cell == side] for side in SIDES]
        moves = [cell for pair in itertools.zip_longest(*taken) for cell in pair if cell is not None]
        said = yield str(best_moves(Board(tuple(moves)))[0])


PLAYERS: dict[str, Player] = {"expert": expert, "fool": repeating("5")}
"""The fool always takes the middle cell, which is soon taken."""
