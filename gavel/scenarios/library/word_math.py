"""Word math: problems of a few steps, a calculator, and a last line with the answer: `#### 72`.

Problems are generated; `word_math:FILE` and `word_math:DIRECTORY` read others in GSM8K's form, JSON lines or parquet
(`gavel.scenarios.gsm8k_files`). Success is GSM8K's strict one: the last number after `####`, and no other.

Generated problems have two to five steps and are drawn from templates: names and numbers of each follow from its
number, and held-out ones are about other people, so no text is in both splits. The calculator parses an expression with
Python's parser and evaluates only numbers and arithmetic in the tree: an agent's text is never run as code.
"""

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from gavel.scenarios.library._shared import drawn, shipped
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_MAX_CHARACTERS = 200
_MAX_BITS = 512
"""Max bits of an intermediate numerator or denominator."""
_MAX_EXPONENT = 20
TRAIN_NAMES = ("Ada", "Bruno", "Chen", "Dora", "Emil", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lena")
HELD_OUT_NAMES = ("Musa", "Nora", "Otto", "Petra", "Quentin", "Rosa", "Samir", "Tilda")
HELD_OUT_FROM = 4000
"""First held-out number; problems of smaller numbers are trained on."""
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,  # pyright: ignore[reportUnknownMemberType]
    ast.FloorDiv: operator.floordiv,  # pyright: ignore[reportUnknownMemberType]
    ast.Mod: operator.mod,  # pyright: ignore[reportUnknownMemberType]
    ast.Pow: pow,
}


def calculate(expression: str) -> str:
    """Compute an arithmetic expression, such as (3 + 4) * 25."""
    # An integer, or a decimal with ten significant digits. `^`, `×`, `÷` and `−` are understood, and commas between
    # thousands are left out. An invalid or too large expression is a `ValueError`.
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {_MAX_CHARACTERS} characters")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", expression.strip())
    text = text.translate({ord("×"): "*", ord("÷"): "/", ord("−"): "-", ord("^"): "**", ord("$"): None})
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is no arithmetic expression") from error
    value = _value(tree.body)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.10g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = Fraction(ast.unparse(node))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _value(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            left, right = _value(left), _value(right)
            if isinstance(operation, ast.Pow) and (right.denominator != 1 or abs(right) > _MAX_EXPONENT):
                raise ValueError(f"an exponent is a whole number from -{_MAX_EXPONENT} to {_MAX_EXPONENT}")
            value = Fraction(_OPERATIONS[type(operation)](left, right))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no number and no arithmetic: use + - * / // % ** and brackets")
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("a number on the way is too large")
    return value


@dataclass(frozen=True, slots=True)
class Template:
    """A text with fields such as `{a}`, the formula of the answer, and the range of each number."""

    text: str
    formula: str
    ranges: Mapping[str, tuple[int, int]]

    @classmethod
    def read(cls, line: str) -> "Template":
        """Parses a line of `_TEMPLATES`."""
        text, formula, ranges = line.split(" | ")
        found = re.findall(r"(\w) (\d+)-(\d+)", ranges)
        return cls(text, formula, {name: (int(low), int(high)) for name, low, high in found})

    def numbers_in(self, text: str) -> dict[str, str] | None:
        """The numbers of a problem by field; None for a problem of another template."""
        pattern = re.escape(self.text)
        for name in ("name", *self.ranges):
            field = re.escape(f"{{{name}}}")
            pattern = pattern.replace(field, rf"(?P<{name}>\w+)", 1).replace(field, f"(?P={name})")
        found = re.fullmatch(pattern, text)
        return found and {name: number for name, number in found.groupdict().items() if name != "name"}


_TEMPLATES = """
{name} buys {a} boxes with {b} pencils each and gives {c} pencils away. How many pencils does {name} keep? \
| {a} * {b} - {c} | a 4-30, b 6-24, c 2-23
A ticket costs {a} euros, and {b} euros for a child. How much do {c} adults and {d} children pay? {name} pays for all \
of them. | {a} * {c} + {b} * {d} | a 8-40, b 2-20, c 2-9, d 2-9
{name} reads {a} pages on each of {b} days, then {c} pages on each of the next {d} days. The book has {e} pages more \
than that. How many pages has the book? | {a} * {b} + {c} * {d} + {e} | a 10-40, b 2-9, c 12-60, d 2-9, e 5-150
A baker makes {a} trays of {b} rolls. {name} takes {c} rolls, and the rest is put into bags of {d}. How many full bags \
are there? | ({a} * {b} - {c}) // {d} | a 5-20, b 12-36, c 3-30, d 4-9
{name} earns {a} euros an hour and works {b} hours a day for {c} days. {name} spends {d} euros. How many euros are \
left? | {a} * {b} * {c} - {d} | a 11-30, b 3-8, c 2-12, d 10-60
A train with {a} coaches has {b} seats in each. {c} seats are taken at the first stop, and twice as many at the \
second. {name} counts the free seats. How many are there? | {a} * {b} - 3 * {c} | a 4-12, b 40-80, c 10-50
{name} has {a}00 euros. A coat costs {b} percent of that. How many euros are left after {name} has bought the coat and \
a hat for {c} euros? | {a} * (100 - {b}) - {c} | a 2-9, b 10-60, c 5-40
In a garden stand {a} rows of {b} trees. Each tree bears {c} kilograms of apples. {name} sells a kilogram for {d} \
euros. How many euros does {name} get for all apples? | {a} * {b} * {c} * {d} | a 3-12, b 4-15, c 10-40, d 2-5
{name} drives {a} kilometres an hour for {b} hours and {c} kilometres an hour for {d} hours. How many kilometres less \
is that than {e} times the first part? \
| {e} * {a} * {b} - ({a} * {b} + {c} * {d}) | a 70-120, b 3-6, c 20-60, d 1-3, e 3-6
A class of {a} girls and {b} boys goes to a museum. Each child pays {c} euros, and a bus for all costs {d} euros. \
{name} collects the money. How much is it for all together? | ({a} + {b}) * {c} + {d} | a 8-16, b 8-16, c 3-15, d 90-400
{name} is {a} years old. {name}'s aunt is {b} times as old, and her mother is {c} years older than the aunt. How old \
will the mother be in {d} years? | {a} * {b} + {c} + {d} | a 6-14, b 3-4, c 18-32, d 1-12
A tank holds {a} litres. {b} litres flow in and {c} litres flow out each minute. {name} opens both for {d} minutes. \
How many litres are in the tank then, if there were {e} at first and it never was full? \
| {e} + ({b} - {c}) * {d} | a 2000-9000, b 20-60, c 3-19, d 5-30, e 20-200
"""
"""A line each: text, formula, and the ranges of the numbers."""
TEMPLATES = tuple(map(Template.read, _TEMPLATES.strip().splitlines()))


def draw_task(number: int) -> Task:
    """The task of a number, always the same one."""
    dice, names = random.Random(f"word math {number}"), HELD_OUT_NAMES if number >= HELD_OUT_FROM else TRAIN_NAMES
    while True:
        template = dice.choice(TEMPLATES)
        values = {name: dice.randint(*limits) for name, limits in template.ranges.items()}
        formula = template.formula.format(**values)
        answer = calculate(formula)
        if answer.isdigit() and int(answer) > 0:
            break
    text = template.text.format(name=dice.choice(names), **values)
    told = f"{formula} = {answer}"
    return Task(id=f"problem-{number}", user=text, data={"answer": answer, "formula": formula}, reference=told)


def answer_in(reply: str) -> str | None:
    """The last number after `#### ` in the last 300 characters, without commas; None without one."""
    found = re.findall(r"#### (-?[0-9.,]+)", reply[-300:])
    return found[-1].replace(",", "") if found else None


def has_answer(trajectory: Trajectory) -> bool:
    return answer_in(trajectory.closing_text()) is not None


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the answer equals the right one."""
    said = answer_in(trajectory.closing_text())
    return trajectory.status == "finished" and said == Task.of(trajectory.metadata).data["answer"]


def hand_reward(trajectory: Trajectory) -> float:
    """A naive hand-written reward: the answer, and a tenth for the form of the last line."""
    return 0.9 * succeeded(trajectory) + 0.1 * has_answer(trajectory)


def scenario_of(name: str, tasks: Sequence[Task], held_out: Sequence[Task] | float) -> Scenario:
    """A scenario of any problems: each task's `data["answer"]` is the number to find."""
    return shipped(
        name,
        tasks,
        held_out,
        tools=[calculate],
        max_turns=10,
        success=succeeded,
        hand_reward=hand_reward,
        measures={"has_answer": has_answer},
    )


scenario = scenario_of("word_math", *drawn(draw_task, HELD_OUT_FROM, 1000))


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Finds the text's formula, computes it, and closes with the answer."""
    found = ((template, template.numbers_in(opening)) for template in TEMPLATES)
    template, numbers = next((template, numbers) for template, numbers in found if numbers is not None)
    formula = template.formula.format(**numbers)
    value = yield Call("calculate", {"expression": formula})
    yield f"{formula} = {value}\n#### {value}"


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Adds all numbers of the text."""
    value = yield Call("calculate", {"expression": " + ".join(re.findall(r"\d+", opening))})
    yield f"#### {value}"


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool}
