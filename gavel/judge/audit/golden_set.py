"""A golden set: groups of known order, from a file of them or from attempts that people labelled.

Labelled attempts are read as `gavel score` reads them; a label is one of these:

    {"instruction": …, "outputs": [A, B], "label": 1}                                  names the better answer
    {"question": …, "response_a": A, "response_b": B, "winner": "model_b"}             the same
    {"prompt": …, "completions": [A, B, C], "ranking": [2, 1, 3]}                      a number for each, 1 is best
    {"prompt": …, "text1": A, "text2": B, "rating1": 1.5, "rating2": 4}                the same, higher is better
    {"messages": […], "reward": 1}                                                     the rows of one task are a group

Where several fields could be the label, none is guessed.
"""

import re
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gavel.base.fields import problem
from gavel.judge.errors import JudgeError
from gavel.llm.types import Message
from gavel.scenarios.formats.fields import Columns
from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.formats.grouping import BY_ROW
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.formats.row import ABSENT, INDEPENDENT, Row, at, is_list, is_object
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

_USUAL = (INDEPENDENT, "label", "winner", "overall", "reward", "score", "rating")
"""Of several fields that could be the label, the first of these is."""
_TIES = ("tie", "draw", "both", "neither")

Labels = list[float | None]
"""Of a group's members, higher is better; None = not labelled."""

SHIPPED = Path(__file__).with_name("golden.json")


class GoldenGroup(BaseModel):
    """Attempts at one task, and which of them are better."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    shows: str = ""
    """The ability that the group tests."""
    opening: list[Message] = Field(default_factory=list[Message])
    """OpenAI messages with which every member begins."""
    tools: list[Message] = Field(default_factory=list[Message])
    """OpenAI tool schemas, of every member."""
    members: dict[str, Annotated[list[Message], Field(min_length=1)]]
    """The messages after the opening, by name; judges do not see the names."""
    order: list[list[str]]
    """Tiers of names, best first; members of one tier are not compared."""

    @model_validator(mode="after")
    def _orders_its_members(self) -> Self:
        if sorted(name for tier in self.order for name in tier) != sorted(self.members):
            raise ValueError(f"the order of {self.name!r} must name each of its members once")
        if not self.pairs:
            raise ValueError(f"the order of {self.name!r} puts no member above another")
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(better, worse) for every two members that are compared."""
        return [pair for above, below in combinations(self.order, 2) for pair in product(above, below)]

    @property
    def ranks(self) -> dict[str, float]:
        """0 for the members of the best tier, -1 for those of the next, and so on, in the order of the file."""
        tiers = {name: -float(tier) for tier, names in enumerate(self.order) for name in names}
        return {name: tiers[name] for name in self.members}

    def group(self) -> TrajectoryGroup:
        """The members as a group to judge, in the order of the file."""
        return TrajectoryGroup(
            Trajectory(messages_and_choices=[*self.opening, *messages], tools=self.tools or None)
            for messages in self.members.values()
        )


def load_golden(
    path: Path = SHIPPED, label: str | None = None, by: str | None = None, columns: Columns | None = None
) -> list[GoldenGroup]:
    """The golden set in a file: a list of `GoldenGroup`s, by default the one that is shipped, or labelled attempts.

    `label`: the field that holds the label of attempts. `by`: the field that names their task, where a row holds one
    attempt. Both may be dotted paths. `columns`: those of a table with other names. Tasks whose attempts have one label
    are left out.

    Raises `JudgeError` where no field, or more than one, could be the label, and for a golden set that contradicts
    itself; `RowError` for a file that cannot be read.
    """
    rows = [row for rows in rows_by_file(path).values() for row in rows]
    if not rows or not all(is_object(row.value) for row in rows):
        raise JudgeError(f"{path} is no golden set: it has no rows with fields.", f"See {SHIPPED} for the form.")
    if "members" in rows[0].value:
        return _golden_groups(rows, path)
    groups = read_file(path, by or BY_ROW, columns).groups
    if by is None and all(len(group) == 1 for group in groups):
        groups = read_file(path, None, columns).groups
    fields = [[{**member.metadata, **member.metrics} for member in group] for group in groups]
    names = [label] if label else list(fields[0][0])
    found = {name: labels for name in names if (labels := _read_labels(fields, name))}
    usual = [name for name in _USUAL if name in found]
    if len(found) != 1 and not usual:
        which = f"{label} is no field that" if label else "several fields" if found else "no field"
        raise JudgeError(
            f"{which} of {path} could say which attempt is better.",
            f"Name the label with --label FIELD: {', '.join(found)}."
            if found
            else "Name it with --label FIELD: a number for each answer, not all the same, or one value that names an "
            "answer in every row; and the task of rows of one attempt each with --by FIELD.",
        )
    chosen = found[usual[0] if usual else next(iter(found))]
    labelled = [_labelled(str(n), *each) for n, each in enumerate(zip(groups, chosen, strict=True), 1)]
    return [group for group in labelled if group is not None]


def _golden_groups(rows: Sequence[Row], path: Path) -> list[GoldenGroup]:
    groups: list[GoldenGroup] = []
    for row in rows:
        try:
            groups.append(GoldenGroup.model_validate(row.value))
        except ValidationError as error:
            raise JudgeError(
                f"{row.where} is no golden group: {problem(error)}.", f"See {SHIPPED} for the form."
            ) from error
    if len({group.name for group in groups}) < len(groups):
        raise JudgeError(f"two groups of {path} have one name.", "Give each a name of its own.")
    return groups


def _labelled(name: str, group: TrajectoryGroup, labels: Labels) -> GoldenGroup | None:
    """The labelled attempts, numbered from 1, in the order of their labels; None where no two differ."""
    known = [
        (member, label) for member, label in zip(group, labels, strict=True) if label is not None and member.messages()
    ]
    values = sorted({label for _, label in known}, reverse=True)
    if len(values) < 2:
        return None
    members = {str(number): member.messages() for number, (member, _) in enumerate(known, 1)}
    order = [[str(number) for number, (_, label) in enumerate(known, 1) if label == value] for value in values]
    return GoldenGroup(name=name, tools=known[0][0].tools or [], members=members, order=order)


def _read_labels(groups: Sequence[Sequence[dict[str, Any]]], name: str) -> list[Labels] | None:
    """The labels of all groups' members in a field; None where it is no label."""
    found: list[list[Any]] = [[at(member, name) for member in group] for group in groups]
    values: list[list[Any]] = [[None if each is ABSENT else each for each in of_group] for of_group in found]
    first = [of_group[0] for of_group in values]
    if all(is_list(each) and len(each) == len(group) for each, group in zip(first, groups, strict=True)):
        values = first  # a number for each answer of the row
    are_numbers = all(isinstance(each, int | float | None) for of_group in values for each in of_group)
    if are_numbers and any(len(set(of_group)) > 1 for of_group in values):
        sign = -1.0 if "rank" in name.lower() else 1.0
        return [[None if each is None else sign * each for each in of_group] for of_group in values]
    of_members = any(each != of_group[0] for of_group in values for each in of_group)
    if of_members or any(isinstance(each, bool | list | dict | float) for each in first):
        return None
    numbers = {each for each in first if isinstance(each, int)}
    from_0 = bool(numbers) and min(numbers) == 0 and max(numbers) == len(groups[0]) - 1
    winners = [_named(each, len(group), from_0) for each, group in zip(first, groups, strict=True)]
    is_same = len({winner for winner in winners if winner}) < 2 and (numbers or len(winners) > 1)
    if None in winners or is_same or not any(winners):  # always the same one: a number that is no label
        return None
    return [[float(n == winner) for n in range(1, len(of) + 1)] for winner, of in zip(winners, groups, strict=True)]


def _named(value: Any, count: int, from_0: bool) -> int | None:
    """The number from 1 of the answer that a value names; 0 for a tie, None where it names none."""
    if value is None or (isinstance(value, str) and value.lower().startswith(_TIES)):
        return 0
    last = re.split(r"[_-]", str(value).lower())[-1]
    letters = "abcdefgh"[:count]
    number = int(last) + from_0 if last.isdecimal() else letters.index(last) + 1 if last in tuple(letters) else -1
    return number if 0 <= number <= count else None
