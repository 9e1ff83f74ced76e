"""A text maze: in each turn the agent sees the open ways and the direction of the exit, and says one step.

The straight way is often a dead end, so it must remember where it has been, and turn back.
"""

from gavel.prompts import render
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.library.maze.labyrinth import DIRECTIONS, Maze, draw_task
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(2000), range(2000, 2400)
_MAX_TURNS = 48


class TextMaze:
    """One maze, and where the agent is in it."""

    async def reset(self, task: Task) -> str:
        self._maze = Maze.model_validate(task.data["maze"])
        self._cell = self._maze.start
        self._nearest = self._distance
        self._is_out = False
        return self._view()

    async def observe(self, action: str) -> object:
        words = action.strip().strip(".!\"'").casefold().split()
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
        """What somebody might write by hand: a little for having been near the exit, the rest for the way out."""
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


scenario = Scenario(
    name="maze",
    system=render("scenarios/maze_system.j2").strip(),
    environment=TextMaze,
    tasks=DrawnTasks(_TRAIN, draw_task),
    held_out=DrawnTasks(_HELD_OUT, draw_task),
    max_turns=_MAX_TURNS,
    rubric=render("scenarios/maze_rubric.j2").strip(),
)
