"""A golden set: groups of known order, from a file of them or from attempts that people labelled.

Labelled attempts are read in the forms in which data sets are published:

    {"instruction": …, "outputs": [A, B], "label": 1}                                  a pair with its winner
    {"question": …, "response_a": A, "response_b": B, "annotator1": "b", "annotator2": "tie"}     the majority's
    {"prompt": …, "answers": [A, B, C], "ranking": [2, 1, 3]}                          a ranking, 1 is best
    {"question": …, "small": {"solution": A, "correct": 0}, "large": {"solution": B, "correct": 1}}
    {"source": …, "reply": A, "scores": {"overall": 4.3}}                a rating; the rows of one task are a group
    {"messages": […], "reward": 1}                                 and whatever else `read_groups` reads with a reward

What a field is follows from its structure: answers are texts beside each other in a list or under names that differ
in a number or a letter; a label is a number for each answer, or one value that names an answer in every row. Where
several fields could be the label, none is guessed.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gavel.judge.errors import JudgeError
from gavel.llm.types import Message
from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.formats.row import INDEPENDENT, Row, at, is_list, is_object
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

_ASKED = ("system", "instruction", "prompt", "question", "query", "source", "context", "input")
"""Fields that hold what was asked, in the order in which they are shown."""
_NUMBERED = re.compile(r"(.+?)[_ -]?(\d+|[a-hA-H])")
_USUAL = ("label", "winner", "overall", "reward", "score", "rating")
"""Of several fields that could be the label, the first of these is."""
_TIES = ("tie", "draw", "both", "neither")

Fields = dict[str, Any]
"""Of a row."""
Answers = dict[str, str]
"""Text by name; a name is a number from 1, the letter of a field, or the field that holds it."""
Labels = Mapping[str, float]
"""Higher is better, by the name of the answer."""


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

    def group(self) -> TrajectoryGroup:
        """The members as a group to judge, in the order of the file."""
        return TrajectoryGroup(
            Trajectory(messages_and_choices=[*self.opening, *messages], tools=self.tools or None)
            for messages in self.members.values()
        )


def load_golden(path: Path = SHIPPED, label: str | None = None, by: str | None = None) -> list[GoldenGroup]:
    """The golden set in a file: a list of `GoldenGroup`s, by default the one that is shipped, or labelled attempts.

    `label`: the field that holds the label of attempts. `by`: the field that names their task, where a row holds one
    attempt. Both may be dotted paths. Tasks whose attempts have one label are left out.

    Raises `JudgeError` where no field, or more than one, could be the label, and for a golden set that contradicts
    itself; `RowError` for a file that cannot be read.
    """
    rows = [row for rows in rows_by_file(path).values() for row in rows]
    fields: list[Fields] = [row.value for row in rows]
    if not rows or not all(is_object(row.value) for row in rows):
        raise JudgeError(f"{path} is no golden set: it has no rows with fields.", f"See {SHIPPED} for the form.")
    if "members" in fields[0]:
        return _golden_groups(rows, path)
    answers = _answers(fields)
    if "messages" in fields[0] or {"chosen", "rejected"} <= fields[0].keys():
        found = _from_trajectories(path, label, by)
    elif all(len(own) > 1 for own in answers):
        found = _from_rows(fields, answers, label, path)
    else:
        found = _from_single_answers(fields, label, by, path)
    groups = [group for group in found if group is not None]
    if not groups:
        raise JudgeError(
            f"no task of {path} has two attempts whose labels differ.",
            "Name the label with --label FIELD, and the task of rows of one attempt each with --by FIELD.",
        )
    return groups


def _golden_groups(rows: Sequence[Row], path: Path) -> list[GoldenGroup]:
    groups: list[GoldenGroup] = []
    for row in rows:
        try:
            groups.append(GoldenGroup.model_validate(row.value))
        except ValidationError as error:
            first = error.errors()[0]
            what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
            raise JudgeError(f"{row.where} is no golden group: {what}.", f"See {SHIPPED} for the form.") from error
    if len({group.name for group in groups}) < len(groups):
        raise JudgeError(f"two groups of {path} have one name.", "Give each a name of its own.")
    return groups


def _labelled(
    name: str, opening: list[Message], members: dict[str, list[Message]], labels: Labels, tools: list[Message] | None
) -> GoldenGroup | None:
    """The members in the order of their labels; None where no two differ."""
    values = sorted({labels[member] for member in members}, reverse=True)
    if len(values) < 2:
        return None
    order = [[member for member in members if labels[member] == value] for value in values]
    return GoldenGroup(name=name, opening=opening, tools=tools or [], members=members, order=order)


def _from_trajectories(path: Path, label: str | None, by: str | None) -> list[GoldenGroup | None]:
    found: list[GoldenGroup | None] = []
    for number, group in enumerate(read_groups(path, by), 1):
        labels: dict[str, float] = {}
        members: dict[str, list[Message]] = {}
        for name, member in enumerate(group, 1):
            known = {**member.metadata, **member.metrics}
            value = at(known, label or INDEPENDENT)
            if isinstance(value, int | float):
                labels[str(name)], members[str(name)] = float(value), member.messages()
        found.append(_labelled(str(number), [], members, labels, group.trajectories[0].tools if members else None))
    return found


def _from_rows(
    rows: Sequence[Fields], answers: Sequence[Answers], label: str | None, where: Path
) -> list[GoldenGroup | None]:
    """Groups of rows that hold all answers to a task."""
    columns = {**_ratings(rows, answers), **_winners(rows, answers)}
    labels = columns[_the_label(list(columns), label, where)]
    return [
        _labelled(str(number), _opening(row), _said(own), given, None)
        for number, (row, own, given) in enumerate(zip(rows, answers, labels, strict=True), 1)
    ]


def _from_single_answers(
    rows: Sequence[Fields], label: str | None, by: str | None, where: Path
) -> list[GoldenGroup | None]:
    """Groups of rows that hold one answer each; those that ask the same are a group."""
    flat = [_flat(row) for row in rows]
    texts = [name for name in flat[0] if name not in _ASKED and all(isinstance(row.get(name), str) for row in flat)]
    if not texts:
        raise JudgeError(f"no field of {where} holds an answer.", f"Its fields: {', '.join(flat[0])}.")
    answer = max(texts, key=lambda name: sum(len(row[name]) for row in flat))
    numbers = [name for name in flat[0] if name != by and all(isinstance(row.get(name), int | float) for row in flat)]
    chosen = _the_label(numbers, label, where)
    tasks: dict[str, list[int]] = {}
    for n, row in enumerate(rows):
        tasks.setdefault(str(_opening(row) if by is None else at(row, by)), []).append(n)
    return [
        _labelled(
            str(number),
            _opening(rows[own[0]]),
            _said({str(n): flat[at_row][answer] for n, at_row in enumerate(own, 1)}),
            {str(n): float(flat[at_row][chosen]) for n, at_row in enumerate(own, 1)},
            None,
        )
        for number, own in enumerate(tasks.values(), 1)
    ]


def _the_label(candidates: Sequence[str], named: str | None, where: Path) -> str:
    """The field that was named, or the only one that could be the label."""
    usual = [name for last in _USUAL for name in candidates if name.rpartition(".")[2] == last]
    chosen = [named] if named else candidates if len(candidates) == 1 else usual[:1]
    if not chosen or chosen[0] not in candidates:
        which = f"{named} is no field that" if named else ("several fields" if candidates else "no field")
        raise JudgeError(
            f"{which} of {where} could say which attempt is better.",
            f"Name one with --label: {', '.join(candidates)}."
            if candidates
            else "A label is a number for each answer, or one value that names an answer in every row.",
        )
    return chosen[0]


def _opening(row: Fields) -> list[Message]:
    asked = [row[name] for name in _ASKED if isinstance(row.get(name), str) and row[name].strip()]
    return [{"role": "user", "content": "\n\n".join(asked)}] if asked else []


def _said(answers: Answers) -> dict[str, list[Message]]:
    return {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}


def _flat(row: Fields) -> Fields:
    """The fields, those of objects by their dotted path."""
    flat: Fields = {}
    for name, value in row.items():
        inner: Fields = value if is_object(value) else {}
        flat |= {f"{name}.{key}": each for key, each in inner.items()} if inner else {name: value}
    return flat


def _siblings(row: Fields, fits: Callable[[Any], bool]) -> dict[str, dict[str, Any]]:
    """Stem -> values by number or letter, of the fields whose names differ in that alone."""
    stems: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        match = _NUMBERED.fullmatch(name)
        if match and name not in _ASKED and fits(value):
            stems.setdefault(match[1], {})[match[2].lower()] = value
    return {stem: values for stem, values in stems.items() if len(values) > 1}


def _objects(row: Fields) -> dict[str, Fields]:
    """The fields that hold objects with the same keys, one of them a text and another a number."""
    objects = {name: value for name, value in row.items() if is_object(value)}
    alike = len({frozenset(value) for value in objects.values()}) == 1 and len(objects) > 1
    whole = all({str} <= set(map(type, v.values())) and any(map(_is_number, v.values())) for v in objects.values())
    return objects if alike and whole else {}


def _answers(rows: Sequence[Fields]) -> list[Answers]:
    """The answers of rows that hold several, where the first row tells in which fields; empty for other rows."""
    first = rows[0]
    lists = [name for name, value in first.items() if is_list(value) and all(map(_is_text, value))]
    for field in lists:
        if field not in _ASKED and len(first[field]) > 1:
            return [{str(number): str(text) for number, text in enumerate(row[field], 1)} for row in rows]
    for stem, texts in _siblings(first, _is_text).items():
        names = [name for name in first if (match := _NUMBERED.fullmatch(name)) and match[1] == stem]
        return [dict(zip(texts, (str(row.get(name)) for name in names), strict=True)) for row in rows]
    return [
        {name: max(filter(_is_text, each.values()), key=len) for name, each in _objects(row).items()} for row in rows
    ]


def _ratings(rows: Sequence[Fields], answers: Sequence[Answers]) -> dict[str, list[Labels]]:
    """Label fields that hold a number for each answer; those of a ranking, by their name, count down."""
    found: dict[str, list[Labels]] = {}
    for row, own in zip(rows, answers, strict=True):
        given: dict[str, dict[str, Any]] = _siblings(row, _is_number)
        for name, value in row.items():
            if is_list(value) and len(value) == len(own) and all(map(_is_number, value)):
                given[name] = dict(zip(own, value, strict=True))
        objects = _objects(row)
        for key in objects[next(iter(objects))] if objects else ():
            given[key] = {name: each[key] for name, each in objects.items()}
        for name, values in given.items():
            if values.keys() == own.keys() and all(map(_is_number, values.values())):
                sign = -1.0 if "rank" in name.lower() else 1.0
                found.setdefault(name, []).append({answer: sign * number for answer, number in values.items()})
    return {name: labels for name, labels in found.items() if len(labels) == len(rows)}


def _winners(rows: Sequence[Fields], answers: Sequence[Answers]) -> dict[str, list[Labels]]:
    """Label fields that name the better answer; fields that differ in a number alone are votes, and the majority's."""
    raters: dict[str, list[list[str | None]]] = {}
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        if name in _ASKED or any(isinstance(value, bool | list | dict | float) for value in values):
            continue
        lowest = min((value for value in values if isinstance(value, int)), default=1)
        most = max((value for value in values if isinstance(value, int)), default=0)
        from_0 = lowest == 0 and most == len(answers[0]) - 1
        named = [_named(value, own, from_0) for value, own in zip(values, answers, strict=True)]
        if None in named:
            continue
        match = _NUMBERED.fullmatch(name)
        raters.setdefault(match[1] if match else name, []).append(named)
    found: dict[str, list[Labels]] = {}
    for name, votes in raters.items():
        if len(rows) > 1 and len({each for named in votes for each in named if each}) < 2:
            continue  # always the same one: a number that is no label
        found[name] = []
        for own, of_row in zip(answers, zip(*votes, strict=True), strict=True):
            count = Counter(vote or "" for vote in of_row)
            best, most = count.most_common(1)[0]
            clear = sum(number == most for number in count.values()) == 1
            found[name].append({answer: float(clear and answer == best) for answer in own})
    return found


def _named(value: Any, answers: Answers, from_0: bool) -> str | None:
    """The answer that a value names; empty for a tie, None where it names none."""
    names = list(answers)
    if value is None or (isinstance(value, str) and value.lower().startswith(_TIES)):
        return ""
    if isinstance(value, int) or value.isdecimal():
        number = int(value) + from_0
        return "" if number == 0 else names[number - 1] if number <= len(names) else None
    last = value.lower().replace("-", "_").rpartition("_")[2]
    letters = "abcdefgh"[: len(names)]
    if last in names or value in names:
        return value if value in names else last
    return names[letters.index(last)] if last in tuple(letters) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
