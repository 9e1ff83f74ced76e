"""Scripted players of twenty questions."""

import random

from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.library.twenty_questions.animals import ANIMALS, FACTS
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Asks what divides the animals that are left most evenly, and names the last ones."""
    left, asked = set(ANIMALS), set[str]()
    while True:
        fact = min(FACTS, key=lambda fact: (fact in asked, abs(len(FACTS[fact] & left) - len(left) / 2)))
        if not 0 < len(FACTS[fact] & left) < len(left):
            break
        asked.add(fact)
        said = yield f"Does this fit: {fact}?"
        left = left & FACTS[fact] if said.startswith("Yes") else left - FACTS[fact]
    for animal in sorted(left):
        yield f"Is it the {animal}?"


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Asks the same again and again."""
    while True:
        yield "Can it fly?"


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
