"""Word problems of two to five steps, drawn from templates: the names and all numbers of each follow from its number.

A template is a text with fields and the formula of its answer, which is a whole number above 0. Held-out problems are
about other people than those that are trained on, so no text is in both splits.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gavel.scenarios.library.word_math.calculator import calculate
from gavel.scenarios.task import Task

TRAIN_NAMES = ("Ada", "Bruno", "Chen", "Dora", "Emil", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lena")
HELD_OUT_NAMES = ("Musa", "Nora", "Otto", "Petra", "Quentin", "Rosa", "Samir", "Tilda")
HELD_OUT_FROM = 4000
"""Problems of smaller numbers are trained on."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with fields such as `{a}`, the formula of the answer, and the range of each number."""

    text: str
    formula: str
    ranges: Mapping[str, tuple[int, int]]

    def numbers_in(self, text: str) -> dict[str, str] | None:
        """The numbers of a problem by field; None for a problem of another template."""
        pattern = re.escape(self.text)
        for name in ("name", *self.ranges):
            first, *others = pattern.split(re.escape(f"{{{name}}}"))
            pattern = first + "".join(
                (rf"(?P<{name}>\w+)" if at == 0 else rf"(?P={name})") + part for at, part in enumerate(others)
            )
        found = re.fullmatch(pattern, text)
        return found and {name: number for name, number in found.groupdict().items() if name != "name"}


TEMPLATES = (
    Template(
        "{name} buys {a} boxes with {b} pencils each and gives {c} pencils away. How many pencils does {name} keep?",
        "{a} * {b} - {c}",
        {"a": (4, 30), "b": (6, 24), "c": (2, 23)},
    ),
    Template(
        "A ticket costs {a} euros, and {b} euros for a child. How much do {c} adults and {d} children pay? "
        "{name} pays for all of them.",
        "{a} * {c} + {b} * {d}",
        {"a": (8, 40), "b": (2, 20), "c": (2, 9), "d": (2, 9)},
    ),
    Template(
        "{name} reads {a} pages on each of {b} days, then {c} pages on each of the next {d} days. The book "
        "has {e} pages more than that. How many pages has the book?",
        "{a} * {b} + {c} * {d} + {e}",
        {"a": (10, 40), "b": (2, 9), "c": (12, 60), "d": (2, 9), "e": (5, 150)},
    ),
    Template(
        "A baker makes {a} trays of {b} rolls. {name} takes {c} rolls, and the rest is put into bags of {d}. "
        "How many full bags are there?",
        "({a} * {b} - {c}) // {d}",
        {"a": (5, 20), "b": (12, 36), "c": (3, 30), "d": (4, 9)},
    ),
    Template(
        "{name} earns {a} euros an hour and works {b} hours a day for {c} days. {name} spends {d} euros. How "
        "many euros are left?",
        "{a} * {b} * {c} - {d}",
        {"a": (11, 30), "b": (3, 8), "c": (2, 12), "d": (10, 60)},
    ),
    Template(
        "A train with {a} coaches has {b} seats in each. {c} seats are taken at the first stop, and twice as "
        "many at the second. {name} counts the free seats. How many are there?",
        "{a} * {b} - 3 * {c}",
        {"a": (4, 12), "b": (40, 80), "c": (10, 50)},
    ),
    Template(
        "{name} has {a}00 euros. A coat costs {b} percent of that. How many euros are left after {name} has "
        "bought the coat and a hat for {c} euros?",
        "{a} * (100 - {b}) - {c}",
        {"a": (2, 9), "b": (10, 60), "c": (5, 40)},
    ),
    Template(
        "In a garden stand {a} rows of {b} trees. Each tree bears {c} kilograms of apples. {name} sells a "
        "kilogram for {d} euros. How many euros does {name} get for all apples?",
        "{a} * {b} * {c} * {d}",
        {"a": (3, 12), "b": (4, 15), "c": (10, 40), "d": (2, 5)},
    ),
    Template(
        "{name} drives {a} kilometres an hour for {b} hours and {c} kilometres an hour for {d} hours. How "
        "many kilometres less is that than {e} times the first part?",
        "{e} * {a} * {b} - ({a} * {b} + {c} * {d})",
        {"a": (70, 120), "b": (3, 6), "c": (20, 60), "d": (1, 3), "e": (3, 6)},
    ),
    Template(
        "A class of {a} girls and {b} boys goes to a museum. Each child pays {c} euros, and a bus for all "
        "costs {d} euros. {name} collects the money. How much is it for all together?",
        "({a} + {b}) * {c} + {d}",
        {"a": (8, 16), "b": (8, 16), "c": (3, 15), "d": (90, 400)},
    ),
    Template(
        "{name} is {a} years old. {name}'s aunt is {b} times as old, and her mother is {c} years older than "
        "the aunt. How old will the mother be in {d} years?",
        "{a} * {b} + {c} + {d}",
        {"a": (6, 14), "b": (3, 4), "c": (18, 32), "d": (1, 12)},
    ),
    Template(
        "A tank holds {a} litres. {b} litres flow in and {c} litres flow out each minute. {name} opens both "
        "for {d} minutes. How many litres are in the tank then, if there were {e} at first and it never was "
        "full?",
        "{e} + ({b} - {c}) * {d}",
        {"a": (2000, 9000), "b": (20, 60), "c": (3, 19), "d": (5, 30), "e": (20, 200)},
    ),
)


def draw(number: int, names: tuple[str, ...]) -> tuple[str, str, str]:
    """Text, formula and answer of a problem."""
    dice = random.Random(f"word math {number}")
    while True:
        template = dice.choice(TEMPLATES)
        values = {name: dice.randint(*limits) for name, limits in template.ranges.items()}
        formula = template.formula.format(**values)
        answer = calculate(formula)
        if answer.isdigit() and int(answer) > 0:
            return template.text.format(name=dice.choice(names), **values), formula, answer


@cache
def draw_task(number: int) -> Task:
    """The task of a number, always the same one."""
    text, formula, answer = draw(number, HELD_OUT_NAMES if number >= HELD_OUT_FROM else TRAIN_NAMES)
    data = {"answer": answer, "formula": formula}
    return Task(id=f"problem-{number}", user=text, data=dict(data), reference=f"{formula} = {answer}")
