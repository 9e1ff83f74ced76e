"""A text adventure: the world answers the agent's words, without tools. Find the key, then the chest."""

from typing import Any

from gavel.prompts import render
from gavel.scenarios.library.text_adventure.house import DIRECTIONS, House, draw_house
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(300), range(300, 400)
_MAX_TURNS = 16


class Adventure:
    """One house, and where the agent is in it."""

    async def reset(self, task: Task) -> str:
        self._house = House.model_validate(task.data["house"])
        self._place = self._house.start
        self._has_key = self._is_won = False
        return self._view()

    async def observe(self, action: str) -> Any:
        match action.strip().strip(".!\"'").casefold().split():
            case ["go", direction] if direction in DIRECTIONS:
                other = self._house.exits(self._place).get(direction)
                if other is None:
                    return f"There is no door to the {direction}."
                self._place = other
                return self._view()
            case ["take", "key"]:
                if self._has_key or self._place != self._house.key:
                    return "There is no key here."
                self._has_key = True
                return "You have the key."
            case ["open", "chest"]:
                if self._place != self._house.chest:
                    return "There is no chest here."
                if not self._has_key:
                    return "The chest is locked."
                self._is_won = True
                return done("The chest is open: you have found the treasure.")
            case ["look"]:
                return self._view()
            case _:
                return "The game does not know that command."

    def success(self, trajectory: Trajectory) -> bool:
        return self._is_won

    def reward(self, trajectory: Trajectory) -> float:
        """What somebody might write by hand: half for the key, the rest for the chest and the way."""
        if not self._is_won:
            return 0.5 * self._has_key
        return 0.5 + 0.5 * self._house.shortest / max(1, trajectory.metrics["turns"])

    def _view(self) -> str:
        here = f"You are in the {self._house.rooms[self._place]}."
        doors = f"Doors lead {', '.join(self._house.exits(self._place))}."
        things = [
            *(["A key lies here."] if self._place == self._house.key and not self._has_key else []),
            *(["A chest stands here."] if self._place == self._house.chest else []),
        ]
        return " ".join([here, *things, doors])


def _tasks(numbers: range) -> list[Task]:
    houses = {number: draw_house(number) for number in numbers}
    return [
        Task(id=f"house-{number}", user="Find the treasure.", data={"house": house.model_dump()})
        for number, house in houses.items()
    ]


scenario = Scenario(
    name="text_adventure",
    system=render("scenarios/text_adventure_system.j2").strip(),
    environment=Adventure,
    tasks=_tasks(_TRAIN),
    held_out=_tasks(_HELD_OUT),
    max_turns=_MAX_TURNS,
    rubric=render("scenarios/text_adventure_rubric.j2").strip(),
)
