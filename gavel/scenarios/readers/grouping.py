"""Attempts -> groups of attempts at the same task, in order of first appearance.

    group(attempts)              # by the task's id, and by what stands before the assistant's first turn
    group(attempts, "task.id")   # by the value of that field of the row
    group(attempts, "opening")   # by what stands before the assistant's first turn alone

Attempts that begin with different messages, or have different truths to be judged by, were not asked the same. Without
`by` they are never in one group; with it they are, and `Groups.notes` tells.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat.chat_completion import Choice
from pydantic import JsonValue

from gavel.llm.counted import counted
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.readers.openings import TRUTHS, as_asked, asked, named_task, opening
from gavel.scenarios.readers.row import Attempt, Found, Row, RowError, WholeGroup, is_object
from gavel.scenarios.trajectory import Trajectory

_SHARED = (*TRUTHS, "answer", "target")
"""Fields that a group's metadata has when all its members have them, and the same."""
OPENING = "opening messages"
BY_OPENING = "opening"
"""The `by` that ignores ids of tasks, unless the rows have a field of that name."""
_WHOLE = "group "
"""How the key of a group that stands in the file begins."""


@dataclass(slots=True)
class Groups:
    groups: list[TrajectoryGroup]
    by: str
    """What the attempts were grouped by; empty when the file held groups alone."""
    notes: list[str]
    """What a user should know of the groups."""


@dataclass(slots=True)
class _Group:
    group: TrajectoryGroup
    name: str
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    """What was asked -> where the first row stands that asks it."""


def group(found: Sequence[Found], by: str | None = None, own: str = "") -> Groups:
    """`own`: what the format's own task ids are told as. Raises `RowError` for a row without the field `by`."""
    attempts = [each for each in found if isinstance(each, Attempt)]
    openings = {id(each): asked(each.trajectory, each.prompt) for each in attempts}
    only_opening = by == BY_OPENING and not any(is_object(each.row.value, by) for each in attempts)
    if only_opening:
        by, own = None, ""
    names: dict[int, dict[str, JsonValue] | None] = {id(e): None if only_opening else e.task for e in attempts}
    fields: dict[str, None] = {}
    if by is None and not only_opening:
        fields = _name_tasks(attempts, names, openings)
    gathered: dict[str, _Group] = {}
    split: dict[str, set[str]] = {}
    for number, each in enumerate(found):
        if isinstance(each, WholeGroup):
            whole = _Group(each.group, each.row.where)
            for trajectory in each.group.trajectories:
                whole.tasks.setdefault(asked(trajectory), each.row.where)
            gathered[f"{_WHOLE}{number}"] = whole
            continue
        task, named = openings[id(each)], names[id(each)]
        if by is not None:
            metadata: dict[str, JsonValue] = {by: _field(each.row, by)}
            key = json.dumps(metadata[by], sort_keys=True)
        elif named:
            metadata = dict(named)
            name = json.dumps(metadata, sort_keys=True)
            if each.task is not None:
                split.setdefault(name, set()).add(task)
            key = name + task
        else:
            metadata = {}
            key = task if opening(each.trajectory, each.prompt) else f"row {number}"
        if key not in gathered:
            gathered[key] = _Group(TrajectoryGroup(metadata=metadata), _name(metadata) or each.row.where)
        gathered[key].group.trajectories.append(each.trajectory)
        gathered[key].tasks.setdefault(task, each.row.where)
    for each in gathered.values():
        _share(each.group)
    by_own = own if any(each.task is not None for each in attempts) else ""
    told = by or ", ".join(filter(None, (by_own, *fields))) or OPENING
    notes = [
        *_different(gathered.values(), by),
        *_split(split),
        *_single(gathered.values(), attempts, by, bool(fields)),
    ]
    if by is None and not own:
        notes += _examples([each for key, each in gathered.items() if not key.startswith(_WHOLE)])
    if by and not attempts:
        notes.append(f"--by {by} is not used: the file holds groups already.")
    return Groups([each.group for each in gathered.values()], told if attempts else "", notes)


def _name_tasks(
    attempts: Sequence[Attempt], names: dict[int, dict[str, JsonValue] | None], openings: Mapping[int, str]
) -> dict[str, None]:
    """Adds to `names` the fields of the rows that name a task, where rows of different tasks have equal openings.

    Returns the names of these fields.
    """
    tasks = {id(each): named_task(each.trajectory) for each in attempts if each.task is None}
    of_opening: dict[str, set[str]] = {}
    for key, task in tasks.items():
        of_opening.setdefault(openings[key], set()).add(json.dumps(task, sort_keys=True))
    if all(len(each) == 1 for each in of_opening.values()):
        return {}
    names |= tasks
    return dict.fromkeys(name for task in tasks.values() for name in task)


def _field(row: Row, by: str) -> JsonValue:
    value: Any = row.value
    if is_object(value, by):
        return value[by]
    for name in by.split("."):
        if not is_object(value, name):
            known = ", ".join(row.value) if is_object(row.value) else "none: it is a bare list"
            raise RowError(f"{row.where} has no field {by}, to group by.", f"The fields of this row: {known}.")
        value = value[name]
    return value


def _name(metadata: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name} {value}" for name, value in metadata.items())


def _share(group: TrajectoryGroup) -> None:
    """Puts what all members are judged by into the group's metadata."""
    for name in _SHARED:
        values = [trajectory.metadata.get(name) for trajectory in group.trajectories]
        if name not in group.metadata and values and values[0] is not None and all(v == values[0] for v in values):
            group.metadata[name] = values[0]


def _different(groups: Any, by: str | None) -> list[str]:
    odd = [each for each in groups if len(each.tasks) > 1]
    if not odd:
        return []
    first, second, *_ = odd[0].tasks.values()
    where = f"{first} and {second}" if first != second else first
    why = f"by --by {by}" if by else "as they stand in the file"
    return [
        f"{counted(len(odd), 'group')} put together {why} begin with different messages, or have different truths to "
        f"be judged by, so their scores may compare different tasks. First: {odd[0].name} ({where})."
    ]


def _split(split: dict[str, set[str]]) -> list[str]:
    odd = [name for name, tasks in split.items() if len(tasks) > 1]
    if not odd:
        return []
    return [
        f"{counted(len(odd), 'task')} with rows that begin with different messages: each such beginning is "
        f"a group of its own. First: {_name(json.loads(odd[0]))}. To compare them all the same, name a field that is "
        "equal in all rows of a task: --by FIELD."
    ]


def _single(groups: Any, attempts: Sequence[Attempt], by: str | None, named: bool) -> list[str]:
    single = [each for each in groups if len(each.group.trajectories) == 1]
    if not single:
        return []
    count = f"{len(single):,} of {counted(len(groups), 'group')}" if len(groups) > 1 else "the only group"
    has = "has" if len(single) == 1 else "have"
    note = f"{count} {has} one attempt, which cannot be compared with another. First: {single[0].name}."
    if by is None and attempts:
        fields = Counter(name for each in attempts for name in each.trajectory.metadata)
        known = ", ".join(name for name, number in fields.items() if number == len(attempts))
        note += f" --by FIELD groups by a field{f' ({known})' if known else ''}."
        if named:
            note += f" --by {BY_OPENING} groups by what stands before the assistant's first turn alone."
    return [note]


def _examples(groups: Any) -> list[str]:
    """Members that differ first in what a user says may have been asked different things after the same examples."""
    odd = [each for each in groups if _differ_in_the_user(each.group.trajectories)]
    if not odd:
        return []
    return [
        f"the members of {counted(len(odd), 'group')} part where a user speaks, not the assistant. If what stands "
        f"before are examples in the prompt, they are different tasks: use --by. First: {odd[0].name}."
    ]


def _differ_in_the_user(members: Sequence[Trajectory]) -> bool:
    if not members:
        return False
    first, *others = [each.messages_and_choices for each in members]
    for other in others:
        pair = next((pair for pair in zip(first, other, strict=False) if _differ(*pair)), ())
        if pair and all(is_object(item) and item.get("role") == "user" for item in pair):
            return True
    return False


def _differ(one: Choice | Message, other: Choice | Message) -> bool:
    if isinstance(one, Choice) or isinstance(other, Choice) or one == other:
        return one != other
    return as_asked(one) != as_asked(other)
