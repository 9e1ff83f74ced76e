"""Mazes on a square grid, drawn by number: every cell can be reached, and there are five loops."""

import random
from functools import cache

from pydantic import BaseModel

from gavel.scenarios.task import Task

DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
SIZE = 6
_LOOPS = 5
_NEAREST = 8
"""Steps from start to exit, at least."""
Cell = tuple[int, int]


class Maze(BaseModel):
    """Cells (x, y) from (0, 0), and the doors between neighbours."""

    doors: list[tuple[Cell, Cell]]
    """Each once, the smaller cell first."""
    start: Cell
    exit: Cell

    def ways(self, cell: Cell) -> dict[str, Cell]:
        """The open directions from a cell, and where they lead."""
        x, y = cell
        beside = {name: (x + dx, y + dy) for name, (dx, dy) in DIRECTIONS.items()}
        return {name: other for name, other in beside.items() if (min(cell, other), max(cell, other)) in self.doors}

    @property
    def shortest(self) -> int:
        """Steps of a shortest way from start to exit."""
        steps: dict[Cell, int] = {self.start: 0}
        for cell in (queue := [self.start]):
            for other in self.ways(cell).values():
                if other not in steps:
                    steps[other] = steps[cell] + 1
                    queue.append(other)
        return steps[self.exit]


def draw_maze(dice: random.Random) -> Maze:
    """A maze whose exit is at least eight steps away."""
    while True:
        cells = [(x, y) for x in range(SIZE) for y in range(SIZE)]
        doors = _tree(dice)
        walls = [
            (cell, other)
            for cell in cells
            for other in ((cell[0] + 1, cell[1]), (cell[0], cell[1] + 1))
            if other in cells and (cell, other) not in doors
        ]
        start, way_out = dice.sample(cells, 2)
        maze = Maze(doors=sorted([*doors, *dice.sample(walls, _LOOPS)]), start=start, exit=way_out)
        if maze.shortest >= _NEAREST:
            return maze


def _tree(dice: random.Random) -> set[tuple[Cell, Cell]]:
    """Doors that lead everywhere in one way: a walk that turns back where nothing new is left."""
    path, seen, doors = [(0, 0)], {(0, 0)}, set[tuple[Cell, Cell]]()
    while path:
        x, y = cell = path[-1]
        beside = [(x + dx, y + dy) for dx, dy in DIRECTIONS.values()]
        new = [each for each in beside if each not in seen and 0 <= each[0] < SIZE and 0 <= each[1] < SIZE]
        if not new:
            path.pop()
            continue
        other = dice.choice(new)
        seen.add(other)
        doors.add((min(cell, other), max(cell, other)))
        path.append(other)
    return doors


@cache
def draw_task(number: int) -> Task:
    """The task of a number, always the same one."""
    maze = draw_maze(random.Random(f"maze {number}"))
    return Task(id=f"maze-{number}", user="Find the exit of the maze.", data={"maze": maze.model_dump(mode="json")})
