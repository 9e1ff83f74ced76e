"""Scripted players of the maze. They see what an agent sees."""

import random
import re

from gavel.scenarios.library.maze.labyrinth import DIRECTIONS, Cell
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes to the cell that it has not seen yet which promises the shortest way out, through cells that it knows."""
    cell, ways, said = (0, 0), dict[Cell, list[str]](), opening
    while True:
        ways[cell] = _ways(said)
        target = _exit_from(said, cell)
        paths = _paths(cell, ways)
        unseen = [each for each in paths if each not in ways]
        goal = min(unseen, key=lambda each: len(paths[each]) + abs(target[0] - each[0]) + abs(target[1] - each[1]))
        step = paths[goal][0]
        cell = _moved(cell, step)
        said = yield step


def _paths(start: Cell, ways: dict[Cell, list[str]]) -> dict[Cell, list[str]]:
    """The shortest known way to each cell that was seen, or that lies beside one."""
    paths: dict[Cell, list[str]] = {start: []}
    for cell in (queue := [start]):
        for way in ways.get(cell, []):
            other = _moved(cell, way)
            if other not in paths:
                paths[other] = [*paths[cell], way]
                queue.append(other)
    return paths


def _ways(said: str) -> list[str]:
    return re.findall(r"Open ways: ([\w, ]+)\.", said)[0].split(", ")


def _exit_from(said: str, cell: Cell) -> Cell:
    x, y = cell
    for steps, way in re.findall(r"(\d+) steps? (\w+)", said):
        dx, dy = DIRECTIONS[way]
        x, y = x + dx * int(steps), y + dy * int(steps)
    return x, y


def _moved(cell: Cell, way: str) -> Cell:
    dx, dy = DIRECTIONS[way]
    return cell[0] + dx, cell[1] + dy


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes towards the exit wherever it can, and never turns back for good."""
    said = opening
    while True:
        towards = [way for _, way in re.findall(r"(\d+) steps? (\w+)", said)]
        ways = _ways(said)
        said = yield next((way for way in towards if way in ways), ways[0])


def wanderer(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes anywhere."""
    said = opening
    while True:
        said = yield dice.choice(_ways(said))


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "wanderer": wanderer}
