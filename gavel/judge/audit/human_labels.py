"""A golden set: groups of known order, from a file of them or from attempts that people labelled.

Labelled attempts are read in the forms in which data sets are published:

    {"instruction": …, "outputs": [A, B], "label": 1}                                  a pair with its winner
    {"question": …, "response_a": A, "response_b": B, "annotator1": "b", "annotator2": "tie"}     the majority's
    {"prompt": …, "answers": [A, B, C], "ranking": [2, 1, 3]}                          a ranking, 1 is best
    {"prompt": …, "answers": [{"answer": A, "rank": 2}, {"answer": B, "rank": 1}]}
    {"question": …, "small": {"solution": A, "correct": 0}, "large": {"solution": B, "correct": 1}}
    {"source": …, "reply": A, "scores": {"overall": 4.3}}                a rating; the rows of one task are a group
    {"messages": […], "reward": 1}                                 and whatever else `read_groups` reads with a reward

What a field is follows from its structure: answers are texts or conversations beside each other, in a list or under
names that differ in a number or a letter; a label is a number for each answer, or one value that names an answer in
every row. An identifier is no label. Where several fields could be the label, none is guessed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from pathlib import Path
from statistics import multimode
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gavel.base.fields import problem
from gavel.judge.errors import JudgeError
from gavel.llm.types import Message
from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.formats.reading import IDENTIFIER, read_groups
from gavel.scenarios.formats.row import INDEPENDENT, Row, as_message, as_number, at, is_list, is_object
from gavel.scenarios.formats.text import is_conversation
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
Columns = dict[str, list[list[float]]]
"""By field, for each task the labels of its answers; higher is better."""

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
    label: str = ""
    """The field of labelled attempts that gives the order; empty where the order itself is given."""

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
    path: Path = SHIPPED, label: str | None = None, by: str | None = None, prompt: str | None = None
) -> list[GoldenGroup]:
    """The golden set in a file: a list of `GoldenGroup`s, by default the one that is shipped, or labelled attempts.

    `label`: the field that holds the label of attempts. `by`: the field that names their task, where a row holds one
    attempt. `prompt`: the field that holds what was asked, where its name does not say so. `by` and `prompt` may be
    dotted paths. Tasks whose attempts have one label are left out.

    Raises `JudgeError` where no field, or more than one, could be the label, where none says what was asked, and for a
    golden set that contradicts itself; `RowError` for a file that cannot be read.
    """
    rows = [row for rows in rows_by_file(path).values() for row in rows]
    fields: list[Fields] = [row.value for row in rows]
    if not rows or not all(is_object(row.value) for row in rows):
        raise JudgeError(f"{path} is no golden set: it has no rows with fields.", f"See {SHIPPED} for the form.")
    if "members" in fields[0]:
        return _golden_groups(rows, path)
    if "messages" in fields[0] or {"chosen", "rejected"} <= fields[0].keys():
        found = _from_trajectories(path, label, by)
    else:
        openings, answers, columns = _tabled(fields, by, prompt, path)
        name = _the_label(list(columns), label, path)
        found = [
            order_by_labels(str(number), opening, own, labels, label=name)
            for number, (opening, own, labels) in enumerate(zip(openings, answers, columns[name], strict=True), 1)
        ]
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
            raise JudgeError(
                f"{row.where} is no golden group: {problem(error)}.", f"See {SHIPPED} for the form."
            ) from error
    if len({group.name for group in groups}) < len(groups):
        raise JudgeError(f"two groups of {path} have one name.", "Give each a name of its own.")
    return groups


def order_by_labels(
    name: str,
    opening: list[Message],
    answers: Sequence[list[Message]],
    labels: Sequence[float],
    tools: list[Message] | None = None,
    label: str = "",
) -> GoldenGroup | None:
    """The answers, numbered from 1, in the order of their labels; None where no two differ."""
    if len(set(labels)) < 2:
        return None
    members = {str(number): messages for number, messages in enumerate(answers, 1)}
    values = sorted(set(labels), reverse=True)
    order = [[member for member, label in zip(members, labels, strict=True) if label == value] for value in values]
    return GoldenGroup(name=name, opening=opening, tools=tools or [], members=members, order=order, label=label)


def _from_trajectories(path: Path, label: str | None, by: str | None) -> list[GoldenGroup | None]:
    found: list[GoldenGroup | None] = []
    name, others = label or INDEPENDENT, set[str]()
    for number, group in enumerate(read_groups(path, by), 1):
        labels = [at({**member.metadata, **member.metrics}, name) for member in group]
        numbers = _ascending(name, labels)
        known = [(member, each) for member, each in zip(group, numbers, strict=True) if each is not None]
        others |= {repr(each) for each, number in zip(labels, numbers, strict=True) if number is None}
        messages, tools = [member.messages() for member, _ in known], known[0][0].tools if known else None
        found.append(order_by_labels(str(number), [], messages, [value for _, value in known], tools, name))
    if label and others and not any(found):
        shown = ", ".join(sorted(others)[:3])
        raise JudgeError(
            f"the field {label} of {path} is no number: {shown}.", "Write numbers: 1 for right, 0 for wrong."
        )
    return found


def _tabled(
    rows: Sequence[Fields], by: str | None, prompt: str | None, where: Path
) -> tuple[list[list[Message]], list[list[list[Message]]], Columns]:
    """For each task what was asked, its answers, and the columns that could be their labels.

    Where no row has several answers, rows that ask the same, or have one value of `by`, are of one task.
    """
    parallel = [_parallel(row) for row in rows]
    if is_of_one := not _texts(parallel):
        tasks: defaultdict[str, list[Fields]] = defaultdict(list)
        for row in rows:
            tasks[str(_opening(row, prompt) if by is None else at(row, by))].append(row)
        rows = [own[0] for own in tasks.values()]
        flat = [[_flat(row) for row in own] for own in tasks.values()]
        parallel = [
            {name: [each.get(name) for each in own] for name in own[0] if name not in (*_ASKED, by, prompt)}
            for own in flat
        ]
    if not (texts := _texts(parallel)):
        raise JudgeError(f"no field of {where} holds an answer.", f"Its fields: {', '.join(_flat(rows[0]))}.")
    answer = max(texts, key=texts.__getitem__)
    openings = [_opening(row, prompt) for row in rows]
    answers = [[as_message(each, "assistant") for each in own.get(answer, [])] for own in parallel]
    if silent := next((own for own, asked in zip(answers, openings, strict=True) if not (asked or _ask(own))), None):
        said = {message.get("content") for each in silent for message in each}
        others = [
            name
            for name, value in _flat(rows[0]).items()
            if isinstance(value, str) and not (value in said or IDENTIFIER.search(name))
        ]
        raise JudgeError(
            f"no field of {where} is known to hold what was asked.",
            f"Name it with --prompt-column, or rename it to prompt: {', '.join(others) or 'add one'}.",
        )
    winners = {} if is_of_one else _winners(rows, [len(own) for own in answers])
    ratings = _ratings(parallel, answer, list(map(len, answers)))
    # One field of each answer, of which at most one is 1, holds no votes for the first answer.
    ones = {name for name, each in ratings.items() if all(set(own) <= {0, 1} and sum(own) <= 1 for own in each)}
    return openings, answers, ratings | {name: each for name, each in winners.items() if name not in ones}


def _texts(parallel: Sequence[dict[str, list[Any]]]) -> dict[str, int]:
    """The fields that hold texts or conversations in the first task, not numbers alone if others do, with their length
    in all."""
    names = [name for name, values in parallel[0].items() if all(map(_is_said, values))]
    names = [name for name in names if any(as_number(each) is None for each in parallel[0][name])] or names
    return {name: sum(len(str(value)) for own in parallel for value in own.get(name, ())) for name in names}


def _is_said(value: Any) -> bool:
    return isinstance(value, str) or (is_list(value) and bool(value) and is_conversation(value))


def _ask(answers: Sequence[list[Message]]) -> bool:
    """Whether each answer is a conversation, in which something was asked."""
    return all(any(message.get("role") == "user" for message in each) for each in answers)


def _the_label(candidates: Sequence[str], named: str | None, where: Path) -> str:
    """The field that was named, or the only one that could be the label."""
    usual = [name for last in _USUAL for name in candidates if name.rpartition(".")[2] == last]
    chosen = [named] if named else candidates if len(candidates) == 1 else usual[:1]
    if not chosen or chosen[0] not in candidates:
        which = f"the field {named} of {where} cannot" if named else f"no field of {where} can"
        which = f"several fields of {where} could" if candidates and not named else which
        raise JudgeError(
            f"{which} say which attempt is better.",
            f"Name one with --label: {', '.join(candidates)}."
            if candidates
            else "A label is a number for each answer, or one value that names an answer in every row, and not always "
            "the same one.",
        )
    return chosen[0]


def _opening(row: Fields, prompt: str | None) -> list[Message]:
    values = [row.get(name) for name in _ASKED] if prompt is None else [at(row, prompt)]
    asked = [value for value in values if isinstance(value, str) and value.strip()]
    return [{"role": "user", "content": "\n\n".join(asked)}] if asked else []


def _flat(row: Fields) -> Fields:
    """The fields, those of objects by their dotted path."""
    flat: Fields = {}
    for name, value in row.items():
        inner: Fields = value if is_object(value) else {}
        flat |= {f"{name}.{key}": each for key, each in inner.items()} if inner else {name: value}
    return flat


def _parallel(row: Fields) -> dict[str, list[Any]]:
    """What has several values: lists, fields whose names differ in a number or letter, and objects of the same keys."""
    objects = [value for value in row.values() if is_object(value)]
    alike = len({frozenset(each) for each in objects}) == 1
    found: dict[str, list[Any]] = {key: [each[key] for each in objects] for key in objects[0]} if alike else {}
    lists = {name: value for name, value in row.items() if is_list(value) and not is_conversation(value)}
    for name, value in lists.items():
        objects = [each for each in value if is_object(each)]
        keys = (
            [key for key in objects[0] if all(key in each for each in objects)]
            if len(objects) == len(value) > 0
            else []
        )
        found |= {f"{name}.{key}": [each[key] for each in objects] for key in keys} or {name: value}
    for stem, names in _stems(row).items():
        if len(names) > 1:
            found[stem] = [row[name] for name in names]
    return {name: values for name, values in found.items() if len(values) > 1 and name not in _ASKED}


def _stems(row: Fields) -> dict[str, list[str]]:
    """The fields whose names differ in a number or letter, by what they share; any other by its own name."""
    matches = {name: _NUMBERED.fullmatch(name) for name in row}
    shared = Counter(match[1] for match in matches.values() if match)
    stems: defaultdict[str, list[str]] = defaultdict(list)
    for name, match in matches.items():
        stems[match[1] if match and shared[match[1]] > 1 else name].append(name)
    return stems


def _ratings(parallel: Sequence[dict[str, list[Any]]], answer: str, sizes: list[int]) -> Columns:
    """Fields, besides that of the answers, that hold a number for each answer."""
    found: Columns = {}
    for name in (each for each in parallel[0] if each != answer):
        columns = [_ascending(name, own.get(name, [])) for own in parallel]
        known = [[each for each in values if each is not None] for values in columns]
        if list(map(len, known)) == list(map(len, columns)) == sizes and not IDENTIFIER.search(name):
            found[name] = known
    return found


def _winners(rows: Sequence[Fields], counts: Sequence[int]) -> Columns:
    """Fields that name the better of so many answers; those that differ in a number alone are votes, and the
    majority's."""
    votes: dict[str, list[list[int]]] = {}
    for stem, names in _stems(rows[0]).items():
        fields = [named for name in names if (named := _winner([row.get(name) for row in rows], counts)) is not None]
        if fields and not (stem in _ASKED or IDENTIFIER.search(names[0])):
            votes[stem] = fields
    return {
        name: [
            [float(multimode(cast) == [number]) for number in range(1, count + 1)]
            for cast, count in zip(zip(*fields, strict=True), counts, strict=True)
        ]
        for name, fields in votes.items()
        # a field that always names the same one is a number that is no label
        if len(rows) == 1 or len({number for field in fields for number in field if number}) > 1
    }


def _winner(values: Sequence[Any], counts: Sequence[int]) -> list[int] | None:
    """The number of the answer that the value of each row names; None where one of them names none."""
    if any(isinstance(value, bool | list | dict | float) for value in values):
        return None
    numbers = {value for value in values if isinstance(value, int)}
    from_0 = bool(numbers) and min(numbers) == 0 and max(numbers) == counts[0] - 1
    named = [_named(value, count, from_0) for value, count in zip(values, counts, strict=True)]
    return None if None in named else [number or 0 for number in named]


def _named(value: Any, count: int, from_0: bool) -> int | None:
    """The number from 1 of the answer that a value names; 0 for a tie, None where it names none."""
    if value is None or (isinstance(value, str) and (not value.strip() or value.lower().startswith(_TIES))):
        return 0
    last = str(value).lower().replace("-", "_").rpartition("_")[2]
    letters = "abcdefgh"[:count]
    number = int(last) + from_0 if last.isdecimal() else letters.index(last) + 1 if last in tuple(letters) else -1
    return number if 0 <= number <= count else None


def _ascending(name: str, values: Iterable[Any]) -> list[float | None]:
    """The numbers of a field, also as CSV holds them; None for what is none. A ranking, by its name, counts down."""
    sign = -1.0 if counts_down(name) else 1.0
    return [None if (number := as_number(each)) is None else sign * number for each in values]


def counts_down(name: str) -> bool:
    """Whether the lowest number of a field is best, as its name says."""
    return "rank" in name.lower()
