"""Scripted players of tic-tac-toe. They read the board from the last message, and keep no state of their own."""

import itertools
import random
import re

from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.library.tic_tac_toe.board import SIDES, Board, best_moves
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Plays perfectly."""
    said = opening
    while True:
        said = yield str(best_moves(board_in(said))[0])


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Always takes the cell in the middle, which soon is taken."""
    while True:
        yield "5"


def board_in(words: str) -> Board:
    """The position of the nine cells at the beginning of a message, in one order of moves that leads to it."""
    cells = re.findall(r"[XO1-9]", words)[:9]
    taken = [[number for number, cell in enumerate(cells, 1) if cell == side] for side in SIDES]
    moves = [cell for pair in itertools.zip_longest(*taken) for cell in pair if cell is not None]
    return Board(tuple(moves))


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
