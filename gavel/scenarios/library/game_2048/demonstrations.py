"""Scripted players of 2048. They see the boards that an agent sees."""

import random

from gavel.scenarios.library.game_2048.board import DIRECTIONS, Board
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Looks two moves ahead, and prefers boards with large tiles and much space."""
    said = opening
    while True:
        after = _after_moves(_board_in(said))
        said = yield max(after, key=lambda move: _promise(after[move], ahead=2))


def _promise(board: Board, ahead: int) -> float:
    """How good a board is before its new tile comes: merges made, and those that could follow."""
    value = float(sum(cell * cell for cell in board.cells))
    if ahead == 0:
        return value
    return value + max((_promise(after, ahead - 1) for after in _after_moves(board).values()), default=0.0)


def _after_moves(board: Board) -> dict[str, Board]:
    """The board after each move that changes something."""
    return {move: after for move in DIRECTIONS if (after := board.slid(move)) != board}


def _board_in(said: str) -> Board:
    return Board.read("\n".join(said.splitlines()[-4:]))


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes up and down for ever."""
    while True:
        yield "up"
        yield "down"


def wanderer(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes anywhere."""
    said = opening
    while True:
        said = yield dice.choice(_board_in(said).moves)


def cornerer(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes left and down, and right only if it must, without looking at the tiles."""
    said = opening
    while True:
        moves = _board_in(said).moves
        said = yield next(move for move in ("left", "down", "right", "up") if move in moves)


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "wanderer": wanderer, "cornerer": cornerer}
