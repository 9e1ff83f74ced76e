"""Scripted players of word math. The expert knows the templates, and reads the numbers from the text."""

import random
import re

from gavel.scenarios.library.demonstrated_call import Call
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.library.word_math.problems import TEMPLATES
from gavel.scenarios.task import Task


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds the formula of the text, computes it, and closes with the answer."""
    found = ((template, template.numbers_in(opening)) for template in TEMPLATES)
    template, numbers = next((template, numbers) for template, numbers in found if numbers is not None)
    formula = template.formula.format(**numbers)
    value = yield Call("calculate", {"expression": formula})
    yield f"{formula} = {value}\n#### {value}"


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Adds all numbers of the text."""
    value = yield Call("calculate", {"expression": " + ".join(re.findall(r"\d+", opening))})
    yield f"#### {value}"


def guesser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Names several answers at the end."""
    yield "\n".join(f"#### {number}" for number in re.findall(r"\d+", opening))


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "guesser": guesser}
