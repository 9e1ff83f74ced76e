"""Writing to order: short texts for people and occasions. No answer is right, so only a judge that reads can tell."""

import itertools

from gavel.scenarios.library._shared import shipped
from gavel.scenarios.task import Task

FORMS = (
    "a birthday card of two sentences", "an apology of about fifty words", "a toast of about sixty words",
    "a notice of three sentences", "a four-line poem", "a short letter of about eighty words",
)  # fmt: skip
READERS = (
    "a colleague who leaves after twenty years", "a neighbour whose window your child broke",
    "a grandmother who has learnt to swim at seventy", "guests of a hotel whose lift is out of order",
    "a friend who has failed an exam", "the first customer of a small bakery", "a teacher who never gave up on you",
    "people who wait in a long queue in the rain", "a brother who moves to another continent",
    "a team that has lost every match this season",
)  # fmt: skip
_TASKS = [
    Task(user=f"Write {form} for {reader}.", data={"form": form, "reader": reader})
    for form, reader in itertools.product(FORMS, READERS)
]
_HELD_OUT = _TASKS[3::7]
"""Pairs of form and reader that are not trained on; every form and every reader is."""
scenario = shipped("writing", [task for task in _TASKS if task not in _HELD_OUT], _HELD_OUT, max_turns=1)
