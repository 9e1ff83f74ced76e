"""Groups attempts at the same task, in order of first appearance.

    group(attempts)              # by the task's id, and by what stands before the assistant's first turn
    group(attempts, "task.id")   # by the value of that field of the row
    group(attempts, "opening")   # by what stands before the assistant's first turn alone

Attempts with different opening messages, or with different judging criteria, have different prompts. Without `by` they
are never in one group; with it they are, and `Groups.notes` tells. The opening is what stands before the assistant's
first turn. Ids and times of messages, which differ between two recordings of one request, are no part of it.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat.chat_completion import Choice
from pydantic import JsonValue

from gavel.base.text import counted
from gavel.llm.types import Message
from gavel.scenarios.formats.chat import odd_fields
from gavel.scenarios.formats.row import ABSENT, Attempt, Found, Row, RowError, WholeGroup, at, is_list, is_object
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

TRUTHS = ("rubric", "reference", "criteria")
"""Fields of a row with the task's own judging criteria."""
_TASK_FIELD = re.compile(
    r"task(_?(id|name|index|idx))?|(example|problem|question|instance|prompt|puzzle|scenario|dataset_?item"
    r"|reference_?example)_?(id|index|idx)",
    re.IGNORECASE,
)
"""`task`, `task_id`, `taskId`, `problem_id`, …: common names of a row's task field."""
BESIDE = ("image", "images", "audio", "audios", "video", "videos", "document", "documents", "attachments", "context")
"""Fields of a row that are part of the prompt, besides its messages. A context that is no text does not count."""
_NESTED = ("metadata", "info", "extra", "extra_info")
"""Fields that hold further fields of the row."""
_OF_A_RECORDING = re.compile(
    r"_?id|uuid|guid|ts|time|date|timestamp|(created|updated|start|end)(_?(at|time))?|cache_control|weight"
    r"|(message|msg|parent|turn|event|trace|span|run|request|response|session|thread|conversation|user)_?(id|uuid)"
    r"|children_?ids|tool_?call_?id|call_?id|tool_?use_?id",
    re.IGNORECASE,
)
"""Fields of a message or part that record its time and id."""


def asked(trajectory: Trajectory, prompt: int | None = None) -> str:
    """The attempt's prompt and judging criteria; attempts can be compared if they are equal.

    `prompt`: the number of prompt messages, if known.
    """
    truths = {name: trajectory.metadata[name] for name in TRUTHS if name in trajectory.metadata}
    whole = [opening(trajectory, prompt), truths, beside_messages(trajectory)]
    return json.dumps(whole, sort_keys=True, default=str)


def beside_messages(trajectory: Trajectory) -> dict[str, JsonValue]:
    """Prompt fields beside the messages, such as images, which a judge is not shown."""
    found = {name: value for name in BESIDE if (value := trajectory.metadata.get(name))}
    return {name: value for name, value in found.items() if name != "context" or isinstance(value, str)}


def opening(trajectory: Trajectory, prompt: int | None = None) -> list[Any]:
    """The messages before the assistant's first turn; if no user message is among them, up to the user's first."""
    items = trajectory.messages_and_choices
    roles = ["assistant" if isinstance(item, Choice) else item.get("role") for item in items]
    end = roles.index("assistant") if "assistant" in roles else len(items)
    if "user" in roles and "user" not in roles[:end]:
        end = roles.index("user") + 1
    end = end if prompt is None else prompt
    return [
        as_asked(item.message.model_dump(mode="json") if isinstance(item, Choice) else item) for item in items[:end]
    ]


def as_asked(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without fields that differ between recordings of it."""
    fields: dict[str, Any] = _without_recording(message)
    content = fields.get("content")
    if is_list(content) and len(content) == 1 and is_object(content[0], "text") and content[0].get("type") == "text":
        fields["content"] = content[0]["text"]
    if fields.get("role") == "developer":
        fields["role"] = "system"
    return fields


def _without_recording(value: Any) -> Any:
    if is_list(value):
        return [_without_recording(each) for each in value]
    if not is_object(value):
        return value
    return {
        name: _without_recording(each)
        for name, each in value.items()
        if each is not None and not _OF_A_RECORDING.fullmatch(name)
    }


def named_task(trajectory: Trajectory) -> dict[str, JsonValue]:
    """The fields of the row that name its task, by their (dotted) names."""
    fields = trajectory.metadata
    holders = {"": fields, **{f"{name}.": inner for name in _NESTED if is_object(inner := fields.get(name))}}
    return {
        f"{within}{name}": value
        for within, inner in holders.items()
        for name, value in inner.items()
        if value is not None and _TASK_FIELD.fullmatch(name)
    }


OPENING = "opening messages"
BY_OPENING = "opening"
"""The value of `by` that ignores task ids, unless the rows have a field of that name."""


@dataclass(slots=True)
class Groups:
    groups: list[TrajectoryGroup]
    by: str
    """The field or rule used for grouping; empty if the file held whole groups only."""
    notes: list[str]
    """Notes on the groups for the user."""
    unasked: list[Attempt]
    """Attempts with an unknown prompt: they are in no group."""


@dataclass(slots=True)
class _Group:
    group: TrajectoryGroup
    name: str
    is_whole: bool = False
    """Whether the file stored it as a group."""
    is_own: bool = False
    """Whether the format's own task ids tell its rows."""
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    """Prompt -> position of the first row with it."""


def group(found: Sequence[Found], by: str | None = None, own: str = "") -> Groups:
    """Groups the attempts. `own`: the name for the format's own task ids. Raises `RowError` for a row without the field
    `by`."""
    attempts, asked_for = [each for each in found if isinstance(each, Attempt)], by
    only_opening = by == BY_OPENING and not any(is_object(each.row.value, by) for each in attempts)
    by, own = (None, "") if only_opening else (by, own)
    unasked = [each for each in attempts if by is None and _asks_nothing(each, only_opening)]
    left = set(map(id, unasked))
    attempts = [each for each in attempts if id(each) not in left]
    prompts = {id(each): asked(each.trajectory, each.prompt) for each in attempts}
    fields = {} if by or only_opening else _fields_of_tasks(attempts, prompts)
    gathered: dict[str, _Group] = {}
    for number, each in enumerate(each for each in found if id(each) not in left):
        if isinstance(each, WholeGroup):
            tasks = {asked(trajectory): each.row.where for trajectory in each.group.trajectories}
            gathered[f"group {number}"] = _Group(each.group, each.row.where, True, tasks=tasks)
            continue
        metadata: dict[str, JsonValue] = {}
        if by is not None:
            metadata = {by: _field(each.row, by)}
        elif not only_opening:
            metadata = dict(each.task or (named_task(each.trajectory) if fields and each.task is None else {}))
        key = json.dumps(metadata, sort_keys=True)
        if by is None:
            is_told = metadata or opening(each.trajectory, each.prompt)
            key += prompts[id(each)] if is_told else f"row {number}"
        if key not in gathered:
            name = ", ".join(f"{name} {value}" for name, value in metadata.items()) or each.row.where
            gathered[key] = _Group(
                TrajectoryGroup(metadata=metadata), name, is_own=by is None and each.task is not None
            )
        gathered[key].group.trajectories.append(each.trajectory)
        gathered[key].tasks.setdefault(prompts[id(each)], each.row.where)
    groups = list(gathered.values())
    for each in groups:
        _share(each.group)
    by_own = own if any(each.task is not None for each in attempts) else ""
    told = by or ", ".join(filter(None, (by_own, *fields))) or OPENING
    notes = _describe(groups, attempts, by, own, bool(fields))
    if asked_for and not attempts:
        notes.append(f"--by {asked_for} is not used: the file holds groups already.")
    return Groups([each.group for each in groups], told if attempts else "", notes, unasked)


def _asks_nothing(attempt: Attempt, only_opening: bool) -> bool:
    """Whether its user messages are blank, as table cells may be, and no field names its task."""
    found = attempt.trajectory
    if not only_opening and (attempt.task or named_task(found)):
        return False
    asking = [message for message in opening(found, attempt.prompt) if message.get("role") == "user"]
    return bool(asking) and not beside_messages(found) and not any(_says_something(each) for each in asking)


def _says_something(message: Message) -> bool:
    content = message.get("content")
    if odd_fields(message):
        return True
    if is_list(content):
        return any(not is_object(part, "text") or str(part["text"]).strip() for part in content)
    return bool(str(content or "").strip())


def _fields_of_tasks(attempts: Sequence[Attempt], prompts: Mapping[int, str]) -> dict[str, None]:
    """The fields that name a task, if rows of different tasks have equal prompts; else none."""
    tasks = {id(each): named_task(each.trajectory) for each in attempts if each.task is None}
    of_prompt: dict[str, set[str]] = {}
    for key, task in tasks.items():
        of_prompt.setdefault(prompts[key], set()).add(json.dumps(task, sort_keys=True))
    if all(len(each) == 1 for each in of_prompt.values()):
        return {}
    return dict.fromkeys(name for task in tasks.values() for name in task)


def _field(row: Row, by: str) -> JsonValue:
    if (value := at(row.value, by)) is ABSENT:
        known = ", ".join(row.value) if is_object(row.value) else "none: it is a bare list"
        raise RowError(f"{row.where} has no field {by}, to group by.", f"The fields of this row: {known}.")
    return value


def _share(group: TrajectoryGroup) -> None:
    """Moves the criteria that all members share into the group's metadata."""
    for name in (*TRUTHS, "answer", "target"):
        values = [trajectory.metadata.get(name) for trajectory in group.trajectories] or [None]
        if name not in group.metadata and values[0] is not None and all(v == values[0] for v in values):
            group.metadata[name] = values[0]


def _describe(
    groups: Sequence[_Group], attempts: Sequence[Attempt], by: str | None, own: str, is_named: bool
) -> list[str]:
    """What cannot be compared, or may not be comparable, with the first such group."""
    notes: list[str] = []
    if odd := [each for each in groups if len(each.tasks) > 1]:
        where = " and ".join(dict.fromkeys([*odd[0].tasks.values()][:2]))
        why = f"by --by {by}" if by else "as they stand in the file"
        notes.append(
            f"{counted(len(odd), 'group')} put together {why} begin with different messages, or have different truths "
            f"to be judged by, so their scores may compare different tasks. First: {odd[0].name} ({where})."
        )
    names = Counter(each.name for each in groups if each.is_own and each.group.metadata)
    if parted := [name for name, number in names.items() if number > 1]:
        notes.append(
            f"{counted(len(parted), 'task')} with rows that begin with different messages: each such beginning is "
            f"a group of its own. First: {parted[0]}. To compare them all the same, name a field that is "
            "equal in all rows of a task: --by FIELD."
        )
    if single := [each for each in groups if len(each.group.trajectories) == 1]:
        count = f"{len(single):,} of {counted(len(groups), 'group')}" if len(groups) > 1 else "the only group"
        has = "has" if len(single) == 1 else "have"
        note = f"{count} {has} one attempt, which cannot be compared with another. First: {single[0].name}."
        if by is None and attempts:
            fields = Counter(
                name for each in attempts for name in each.trajectory.metadata if name not in (each.task or {})
            )
            known = ", ".join(name for name, number in fields.items() if number == len(attempts))
            note += f" --by FIELD groups by a field{f' ({known})' if known else ''}."
            if is_named:
                note += f" --by {BY_OPENING} groups by what stands before the assistant's first turn alone."
        notes.append(note)
    made = [each for each in groups if by is None and not own and not each.is_whole]
    if examples := [each for each in made if _differ_in_the_user(each.group.trajectories)]:
        notes.append(
            f"the members of {counted(len(examples), 'group')} part where a user speaks, not the assistant. If what "
            "stands before are examples in the prompt, they are different tasks: use --by. "
            f"First: {examples[0].name}."
        )
    return notes


def _differ_in_the_user(members: Sequence[Trajectory]) -> bool:
    """Whether two members differ first in a user message: they may be different questions after the same examples."""
    first, *others = [each.messages_and_choices for each in members] or [[]]
    pairs = (next((it for it in zip(first, other, strict=False) if _differ(*it)), ()) for other in others)
    return any(pair and all(is_object(item) and item.get("role") == "user" for item in pair) for pair in pairs)


def _differ(one: Choice | Message, other: Choice | Message) -> bool:
    if isinstance(one, Choice) or isinstance(other, Choice) or one == other:
        return one != other
    return as_asked(one) != as_asked(other)
