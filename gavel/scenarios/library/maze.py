"""A text maze: each turn the agent sees the open ways and the direction of the exit, and names one step.

The straight way is often a dead end, so the agent must remember its path, and backtrack.
"""

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from gavel.scenarios.library._shared import drawn, move_in, shipped
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

SIZE = 6
DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
Cell = tuple[int, int]


def beside(cell: Cell) -> dict[str, Cell]:
    """The cell in each direction, whether or not it belongs to the maze."""
    x, y = cell
    return {name: (x + dx, y + dy) for name, (dx, dy) in DIRECTIONS.items()}


def shortest_ways(start: Cell, ways: Callable[[Cell], Iterable[str]]) -> dict[Cell, list[str]]:
    """The directions of a shortest way to each reachable cell, the nearest cells first."""
    found: dict[Cell, list[str]] = {start: []}
    for cell in (queue := [start]):
        for direction in ways(cell):
            if (other := beside(cell)[direction]) not in found:
                found[other] = [*found[cell], direction]
                queue.append(other)
    return found


def _door(cell: Cell, other: Cell) -> tuple[Cell, Cell]:
    return min(cell, other), max(cell, other)


class Maze(BaseModel):
    """Cells (x, y) from (0, 0), and the doors between neighbours."""

    doors: list[tuple[Cell, Cell]]
    """Each door once, the smaller cell first."""
    start: Cell
    exit: Cell

    def ways(self, cell: Cell) -> dict[str, Cell]:
        """The open directions from a cell, with the cells behind them."""
        return {name: other for name, other in beside(cell).items() if _door(cell, other) in self.doors}

    @property
    def shortest(self) -> int:
        """Number of steps of a shortest way from start to exit."""
        return len(shortest_ways(self.start, self.ways)[self.exit])


def draw_task(number: int) -> Task:
    """The task of a number, always the same one: a maze whose exit is at least eight steps away."""
    dice = random.Random(f"maze {number}")
    cells = [(x, y) for x in range(SIZE) for y in range(SIZE)]
    pairs = [(cell, other) for cell in cells for other in ((cell[0] + 1, cell[1]), (cell[0], cell[1] + 1))]
    while True:
        doors = _draw_tree(dice)
        walls = [pair for pair in pairs if pair[1] in cells and pair not in doors]
        start, way_out = dice.sample(cells, 2)
        maze = Maze(doors=sorted([*doors, *dice.sample(walls, 5)]), start=start, exit=way_out)
        if maze.shortest >= 8:
            told: Any = maze.model_dump(mode="json")
            return Task(id=f"maze-{number}", user="Find the exit of the maze.", data={"maze": told})


def _draw_tree(dice: random.Random) -> set[tuple[Cell, Cell]]:
    """Doors of a random spanning tree: a walk that backtracks where no unvisited cell is left."""
    path, seen, doors = [(0, 0)], {(0, 0)}, set[tuple[Cell, Cell]]()
    while path:
        cell = path[-1]
        new = [each for each in beside(cell).values() if each not in seen and all(0 <= at < SIZE for at in each)]
        if not new:
            path.pop()
            continue
        other = dice.choice(new)
        seen.add(other)
        doors.add(_door(cell, other))
        path.append(other)
    return doors


class TextMaze:
    """One maze, and the agent's position."""

    async def reset(self, task: Task) -> str:
        self._maze = Maze.model_validate(task.data["maze"])
        self._cell = self._maze.start
        self._nearest = self._distance
        self._is_out = False
        return self._view()

    async def observe(self, action: str) -> object:
        words = move_in(action).split()
        direction = words[-1] if words else ""
        if words not in ([direction], ["go", direction]) or direction not in DIRECTIONS:
            return f"Say one step: north, south, east or west. {self._view()}"
        other = self._maze.ways(self._cell).get(direction)
        if other is None:
            return f"There is a wall. {self._view()}"
        self._cell = other
        self._nearest = min(self._nearest, self._distance)
        self._is_out = other == self._maze.exit
        return done("You have found the exit.") if self._is_out else self._view()

    def success(self, trajectory: Trajectory) -> bool:
        return self._is_out

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: a little for approaching the exit, the rest for reaching it."""
        if not self._is_out:
            return 0.3 / (1 + self._nearest)
        return 0.5 + 0.5 * self._maze.shortest / max(1, trajectory.metrics["turns"])

    @property
    def _distance(self) -> int:
        return abs(self._maze.exit[0] - self._cell[0]) + abs(self._maze.exit[1] - self._cell[1])

    def _view(self) -> str:
        east, north = self._maze.exit[0] - self._cell[0], self._maze.exit[1] - self._cell[1]
        parts = [
            f"{abs(steps)} {'step' if abs(steps) == 1 else 'steps'} {ahead if steps > 0 else behind}"
            for steps, ahead, behind in ((north, "north", "south"), (east, "east", "west"))
            if steps
        ]
        return f"Open ways: {', '.join(self._maze.ways(self._cell))}. The exit is {' and '.join(parts)} of you."


scenario = shipped("maze", *drawn(draw_task, 2000, 400), environment=TextMaze, max_turns=48)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes to the unvisited cell that promises the shortest way out, through known cells."""
    cell, ways, said = (0, 0), dict[Cell, list[str]](), opening
    while True:
        ways[cell] = _ways(said)
        target = _exit_from(said, cell)
        paths = shortest_ways(cell, lambda known: ways.get(known, ()))
        unseen = [each for each in paths if each not in ways]
        goal = min(unseen, key=lambda each: len(paths[each]) + abs(target[0] - each[0]) + abs(target[1] - each[1]))
        step = paths[goal][0]
        cell = beside(cell)[step]
        said = yield step


def _ways(said: str) -> list[str]:
    return re.findall(r"Open ways: ([\w, ]+)\.", said)[0].split(", ")


def _exit_from(said: str, cell: Cell) -> Cell:
    x, y = cell
    for steps, way in re.findall(r"(\d+) steps? (\w+)", said):
        dx, dy = DIRECTIONS[way]
        x, y = x + dx * int(steps), y + dy * int(steps)
    return x, y


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Goes towards the exit whenever possible, and never backtracks for good."""
    said = opening
    while True:
        towards = [way for _, way in re.findall(r"(\d+) steps? (\w+)", said)]
        ways = _ways(said)
        said = yield next((way for way in towards if way in ways), ways[0])


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
