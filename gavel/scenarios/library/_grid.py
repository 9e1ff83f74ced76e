"""Grid worlds, walked cell by cell: the directions, and shortest ways."""

from collections.abc import Callable, Mapping
from typing import TypeVar

DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
Cell = tuple[int, int]
_P = TypeVar("_P")


def beside(cell: Cell) -> dict[str, Cell]:
    """The cell in each direction, whether or not it belongs to the world."""
    x, y = cell
    return {name: (x + dx, y + dy) for name, (dx, dy) in DIRECTIONS.items()}


def shortest_ways(start: _P, exits: Callable[[_P], Mapping[str, _P]]) -> dict[_P, list[str]]:
    """The directions of a shortest way to each reachable place, the nearest places first."""
    ways: dict[_P, list[str]] = {start: []}
    for place in (queue := [start]):
        for direction, other in exits(place).items():
            if other not in ways:
                ways[other] = [*ways[place], direction]
                queue.append(other)
    return ways
