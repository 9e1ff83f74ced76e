"""Writing to order: short texts for people and occasions. No answer is right, so only a judge that reads can tell."""

import itertools

from gavel.prompts import render
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task

FORMS = (
    "a birthday card of two sentences",
    "an apology of about fifty words",
    "a toast of about sixty words",
    "a notice of three sentences",
    "a four-line poem",
    "a short letter of about eighty words",
)
READERS = (
    "a colleague who leaves after twenty years",
    "a neighbour whose window your child broke",
    "a grandmother who has learnt to swim at seventy",
    "guests of a hotel whose lift is out of order",
    "a friend who has failed an exam",
    "the first customer of a small bakery",
    "a teacher who never gave up on you",
    "people who wait in a long queue in the rain",
    "a brother who moves to another continent",
    "a team that has lost every match this season",
)
_ORDERS = list(itertools.product(FORMS, READERS))


def _tasks(held_out: bool) -> list[Task]:
    """Tasks of form and reader: every form and every reader is trained on; the held-out pairs are not."""
    chosen = [pair for at, pair in enumerate(_ORDERS) if (at % 7 == 3) == held_out]
    return [Task(user=f"Write {form} for {reader}.", data={"form": form, "reader": reader}) for form, reader in chosen]


scenario = Scenario(
    name="writing",
    system=render("scenarios/writing_system.j2").strip(),
    tasks=_tasks(held_out=False),
    held_out=_tasks(held_out=True),
    max_turns=1,
    rubric=render("scenarios/writing_rubric.j2").strip(),
)
