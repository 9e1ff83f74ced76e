"""A text adventure without tools: the world answers the agent's words. Find the key, then the chest."""

import random
from typing import Any

from pydantic import BaseModel

from gavel.scenarios.library._shared import DIRECTIONS, Cell, beside, move_in, repeating, shipped, shortest_ways
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory


class House(BaseModel):
    """Rooms by position on a grid; neighbours have a door between them."""

    rooms: dict[str, str]
    """Room names by position, "x,y"."""
    start: str
    key: str
    chest: str

    def exits(self, place: str) -> dict[str, str]:
        """The position behind each door."""
        x, y = map(int, place.split(","))
        around = {name: f"{x},{y}" for name, (x, y) in beside((x, y)).items()}
        return {name: other for name, other in around.items() if other in self.rooms}

    def way(self, start: str, goal: str) -> list[str]:
        """The directions of a shortest way."""
        return shortest_ways(start, self.exits)[goal]

    @property
    def shortest(self) -> int:
        """Number of commands in the shortest solution."""
        return len(self.way(self.start, self.key)) + len(self.way(self.key, self.chest)) + 2


NAMES = (
    "attic", "kitchen", "cellar", "library", "hall", "pantry", "studio", "garden room", "bedroom", "workshop", "tower",
    "gallery", "laundry", "study",
)  # fmt: skip


def draw_house(number: int) -> House:
    """The house of a number, always the same one: 5 to 8 rooms."""
    dice = random.Random(f"text adventure {number}")
    places: list[Cell] = [(0, 0)]
    size = dice.randint(5, 8)
    while len(places) < size:
        x, y = dice.choice(places)
        dx, dy = dice.choice(list(DIRECTIONS.values()))
        if (x + dx, y + dy) not in places:
            places.append((x + dx, y + dy))
    names = dice.sample(NAMES, size)
    rooms = {f"{x},{y}": name for (x, y), name in zip(places, names, strict=True)}
    start, key, chest = dice.sample(sorted(rooms), 3)
    return House(rooms=rooms, start=start, key=key, chest=chest)


class Adventure:
    """One house, and the agent's position."""

    async def reset(self, task: Task) -> str:
        self._house = House.model_validate(task.data["house"])
        self._place = self._house.start
        self._has_key = self._is_won = False
        return self._view()

    async def observe(self, action: str) -> Any:
        match move_in(action).split():
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
        """A naive hand-written reward: half for the key, the rest for the chest and the way."""
        if not self._is_won:
            return 0.5 * self._has_key
        return 0.5 + 0.5 * self._house.shortest / max(1, trajectory.metrics["turns"])

    def _view(self) -> str:
        house, place = self._house, self._place
        key = "A key lies here." * (place == house.key and not self._has_key)
        chest = "A chest stands here." * (place == house.chest)
        doors = f"Doors lead {', '.join(house.exits(place))}."
        return " ".join(filter(None, [f"You are in the {house.rooms[place]}.", key, chest, doors]))


_TASKS = [
    Task(id=f"house-{number}", user="Find the treasure.", data={"house": draw_house(number).model_dump()})
    for number in range(400)
]
scenario = shipped("text_adventure", _TASKS[:300], _TASKS[300:], environment=Adventure, max_turns=16)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Knows the house, and takes a shortest way."""
    house = House.model_validate(task.data["house"])
    for start, goal, command in ((house.start, house.key, "Take key."), (house.key, house.chest, "open chest")):
        for direction in house.way(start, goal):
            yield f"go {direction}"
        yield command


PLAYERS: dict[str, Player] = {"expert": expert, "fool": repeating("open chest")}
