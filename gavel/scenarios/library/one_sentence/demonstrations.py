"""Scripted writers of one sentence."""

import random

from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """A short sentence that names the topic."""
    topic = opening.rstrip(".").partition("about ")[2]
    yield f"Many people like to think about {topic}."


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """A long answer of several sentences."""
    topic = opening.rstrip(".").partition("about ")[2]
    yield f"Of course! Here is a sentence about {topic}. " + f"I like {topic} very much, and I could talk of it. " * 3


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
