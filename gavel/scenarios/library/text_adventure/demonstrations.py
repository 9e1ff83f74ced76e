"""Scripted players of the text adventure."""

import random

from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.library.text_adventure.house import House
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Knows the house, and takes a shortest way."""
    house = House.model_validate(task.data["house"])
    for direction in house.way(house.start, house.key):
        yield f"go {direction}"
    yield "Take key."
    for direction in house.way(house.key, house.chest):
        yield f"go {direction}"
    yield "open chest"


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Tries to open the chest wherever it is."""
    while True:
        yield "open chest"


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
