"""Houses of a few rooms on a grid, drawn by number. Every room can be reached; key and chest are in different ones."""

import random

from pydantic import BaseModel

DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
Place = tuple[int, int]


class House(BaseModel):
    """Rooms by their place on a grid; neighbours have a door between them."""

    rooms: dict[str, str]
    """Name by place, "x,y"."""
    start: str
    key: str
    chest: str

    def exits(self, place: str) -> dict[str, str]:
        """The place behind each door."""
        x, y = map(int, place.split(","))
        beside = {name: f"{x + dx},{y + dy}" for name, (dx, dy) in DIRECTIONS.items()}
        return {name: other for name, other in beside.items() if other in self.rooms}

    def way(self, start: str, goal: str) -> list[str]:
        """The directions of a shortest way."""
        ways: dict[str, list[str]] = {start: []}
        for place in (queue := [start]):
            for direction, other in self.exits(place).items():
                if other not in ways:
                    ways[other] = [*ways[place], direction]
                    queue.append(other)
        return ways[goal]

    @property
    def shortest(self) -> int:
        """Commands of the shortest solution."""
        return len(self.way(self.start, self.key)) + len(self.way(self.key, self.chest)) + 2


NAMES = (
    "attic", "kitchen", "cellar", "library", "hall", "pantry", "studio", "garden room", "bedroom", "workshop", "tower",
    "gallery", "laundry", "study",
)  # fmt: skip


def draw_house(number: int) -> House:
    """The house of a number, always the same one: 5 to 8 rooms."""
    dice = random.Random(f"text adventure {number}")
    places: list[Place] = [(0, 0)]
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
