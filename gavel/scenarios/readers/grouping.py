"""Attempts -> groups of attempts at the same task, in order of first appearance.

    group(attempts)              # by the format's own task ids, else by what stands before the assistant's first turn
    group(attempts, "task.id")   # by the value of that field of the row

Attempts that begin with different messages, or have different truths to be judged by, were not asked the same. Without
`by` they are never in one group; with it they are, and `Groups.notes` tells.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat.chat_completion import Choice
from pydantic import JsonValue

from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.readers.row import Attempt, Found, Row, RowError, WholeGroup, is_list, is_object
from gavel.scenarios.trajectory import Trajectory

TRUTHS = ("rubric", "reference", "criteria")
"""Fields of a row that say what its attempt is judged by."""
_SHARED = (*TRUTHS, "answer", "target")
"""Fields that a group's metadata has when all its members have them, and the same."""
OPENING = "opening messages"
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
    gathered: dict[str, _Group] = {}
    split: dict[str, set[str]] = {}
    for number, each in enumerate(found):
        if isinstance(each, WholeGroup):
            whole = _Group(each.group, each.row.where)
            for trajectory in each.group.trajectories:
                whole.tasks.setdefault(asked(trajectory), each.row.where)
            gathered[f"{_WHOLE}{number}"] = whole
            continue
        task = asked(each.trajectory, each.prompt)
        if by is not None:
            metadata: dict[str, JsonValue] = {by: _field(each.row, by)}
            key = json.dumps(metadata[by], sort_keys=True)
        elif each.task is not None:
            metadata = dict(each.task)
            name = json.dumps(metadata, sort_keys=True)
            split.setdefault(name, set()).add(task)
            key = name + task
        else:
            metadata = {}
            key = task if _opening(each.trajectory, each.prompt) else f"row {number}"
        if key not in gathered:
            gathered[key] = _Group(TrajectoryGroup(metadata=metadata), _name(metadata) or each.row.where)
        gathered[key].group.trajectories.append(each.trajectory)
        gathered[key].tasks.setdefault(task, each.row.where)
    for each in gathered.values():
        _share(each.group)
    attempts = [each for each in found if isinstance(each, Attempt)]
    told = by or (own if any(each.task is not None for each in attempts) else OPENING)
    notes = [*_different(gathered.values(), by), *_split(split), *_single(gathered.values(), attempts, by)]
    if by is None and not own:
        notes += _examples([each for key, each in gathered.items() if not key.startswith(_WHOLE)])
    if by and not attempts:
        notes.append(f"--by {by} is not used: the file holds groups already.")
    return Groups([each.group for each in gathered.values()], told if attempts else "", notes)


def asked(trajectory: Trajectory, prompt: int | None = None) -> str:
    """What the attempt was asked and is judged by; equal for attempts that can be compared."""
    truths = {name: trajectory.metadata[name] for name in TRUTHS if name in trajectory.metadata}
    return json.dumps([_opening(trajectory, prompt), truths], sort_keys=True, default=str)


def _opening(trajectory: Trajectory, prompt: int | None = None) -> list[Any]:
    """What stands before the assistant's first turn; where no user has spoken by then, all up to the user's first."""
    items = trajectory.messages_and_choices
    roles = ["assistant" if isinstance(item, Choice) else item.get("role") for item in items]
    end = roles.index("assistant") if "assistant" in roles else len(items)
    if "user" in roles and "user" not in roles[:end]:
        end = roles.index("user") + 1
    end = end if prompt is None else prompt
    return [_plain(item.message.model_dump(mode="json") if isinstance(item, Choice) else item) for item in items[:end]]


def _plain(message: Message) -> Message:
    fields = {name: value for name, value in message.items() if value is not None and name != "id"}
    content = fields.get("content")
    if is_list(content) and len(content) == 1 and is_object(content[0], "text") and content[0].get("type") == "text":
        fields["content"] = content[0]["text"]
    if fields.get("role") == "developer":
        fields["role"] = "system"
    return fields


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
        f"{_groups(len(odd))} put together {why} begin with different messages, or have different truths to be judged "
        f"by, so their scores may compare different tasks. First: {odd[0].name} ({where})."
    ]


def _split(split: dict[str, set[str]]) -> list[str]:
    odd = [name for name, tasks in split.items() if len(tasks) > 1]
    if not odd:
        return []
    return [
        f"{len(odd):,} task{'s' * (len(odd) > 1)} with rows that begin with different messages: each such beginning is "
        f"a group of its own. First: {_name(json.loads(odd[0]))}. --by compares them all the same."
    ]


def _single(groups: Any, attempts: Sequence[Attempt], by: str | None) -> list[str]:
    single = [each for each in groups if len(each.group.trajectories) == 1]
    if not single:
        return []
    count = f"{len(single):,} of {len(groups):,} groups" if len(groups) > 1 else "the only group"
    has = "has" if len(single) == 1 else "have"
    note = f"{count} {has} one attempt, which cannot be compared with another. First: {single[0].name}."
    if by is None and attempts:
        fields = Counter(name for each in attempts for name in each.trajectory.metadata)
        known = ", ".join(name for name, number in fields.items() if number == len(attempts))
        note += f" --by FIELD groups by a field{f' ({known})' if known else ''}."
    return [note]


def _examples(groups: Any) -> list[str]:
    """Members that differ first in what a user says may have been asked different things after the same examples."""
    odd = [each for each in groups if _differ_in_the_user(each.group.trajectories)]
    if not odd:
        return []
    return [
        f"the members of {_groups(len(odd))} part where a user speaks, not the assistant. If what stands before are "
        f"examples in the prompt, they are different tasks: use --by. First: {odd[0].name}."
    ]


def _differ_in_the_user(members: Sequence[Trajectory]) -> bool:
    if not members:
        return False
    first, *others = [each.messages_and_choices for each in members]
    for other in others:
        pair = next((pair for pair in zip(first, other, strict=False) if pair[0] != pair[1]), ())
        if pair and all(is_object(item) and item.get("role") == "user" for item in pair):
            return True
    return False


def _groups(number: int) -> str:
    return f"{number:,} group{'s' * (number > 1)}"
