"""Reads trajectory groups from a file of JSON lines, written by Gavel or by other programs.

A row is a list of OpenAI messages, an object with `messages`, a trajectory or a trajectory group. Any other row is an
error that names file and line: no row is skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gavel.llm.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.record_format import RecordVersionError, from_row
from gavel.scenarios.store import TrajectoryStore
from gavel.scenarios.trajectory import Trajectory

Item = TypeVar("Item", bound=Trajectory | TrajectoryGroup)


class RowError(GavelError):
    """A file holds something that cannot be judged."""


class _Loose(BaseModel):
    """Only what is read later is checked; whatever else a message carries is kept."""

    model_config = ConfigDict(extra="allow")


class _Call(_Loose):
    function: dict[str, Any] | None = None
    custom: dict[str, Any] | None = None


class _Message(_Loose):
    role: str
    tool_calls: list[_Call] | None = None
    function_call: dict[str, Any] | None = None


class _Function(_Loose):
    parameters: dict[str, Any] | None = None


class _Tool(_Function):
    function: _Function | None = None


_MESSAGES, _TOOLS = TypeAdapter(list[_Message]), TypeAdapter(list[_Tool])


def read_groups(path: Path, by: str | None = None) -> list[TrajectoryGroup]:
    """The groups in `path`, in order of first appearance: JSON lines, or a trajectory store (`.zst`).

    Rows that are groups stay as they are. The others are put together by the value of the field `by` (a dotted path
    into the row, such as `metadata.task.id`), which is kept in the group's metadata; without `by` they are one group.

    Raises `RowError`, and `StoreError` for a store that cannot be read.
    """
    if path.suffix == ".zst":
        groups = list(TrajectoryStore(path).read())
        for number, group in enumerate(groups):
            _checked(group, f"{path}, record {number}")
    else:
        groups = _group(path, by)
    if not any(group.trajectories for group in groups):
        raise RowError(f"{path} holds no trajectory.", "Give a file with one trajectory or group on each line.")
    return groups


def _group(path: Path, by: str | None) -> list[TrajectoryGroup]:
    groups: list[TrajectoryGroup] = []
    gathered: dict[str, TrajectoryGroup] = {}
    for where, row in _rows(path):
        item = _item(row, where)
        if isinstance(item, TrajectoryGroup):
            groups.append(item)
            continue
        value = None if by is None else _field(row, by, where)
        key = json.dumps(value, sort_keys=True)
        if key not in gathered:
            gathered[key] = TrajectoryGroup(metadata={} if by is None else {by: value})
            groups.append(gathered[key])
        gathered[key].trajectories.append(item)
    return groups


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Where each row stands (`file:line`), and the row."""
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise RowError(f"{path} cannot be read: {error.strerror or error}", "Check the path.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            yield where, json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise RowError(
                f"{where} is no JSON value: {error}", "Mend or delete this line; a row must stand on one line."
            ) from error


def _item(row: Any, where: str) -> Trajectory | TrajectoryGroup:
    try:
        match row:
            case list():
                item = Trajectory(messages_and_choices=cast(list[Any], row))
            case {"trajectories": _}:
                item = from_row(row)
            case {"messages_and_choices": _}:
                item = Trajectory.model_validate(row)
            case {"messages": messages, **rest}:
                tools = rest.pop("tools", None)
                item = Trajectory(messages_and_choices=messages, tools=tools, metadata=rest)
            case _:
                raise RowError(
                    f"{where} is neither a list of messages, nor an object with messages, nor a trajectory or group.",
                    'Write each row as {"messages": [{"role": "user", "content": "…"}, …]}.',
                )
    except RecordVersionError as error:
        raise RowError(f"{where} cannot be read: {error.message}", error.remedy) from error
    except (ValidationError, TypeError) as error:
        raise _unusable(where, error) from error
    return _checked(item, where)


def _checked(item: Item, where: str) -> Item:
    """The item, if its messages and tools have the shapes that a judge's prompt is made of."""
    for trajectory in [item] if isinstance(item, Trajectory) else item.trajectories:
        try:
            for history in trajectory.histories():
                _MESSAGES.validate_python(history.messages())
                _TOOLS.validate_python(history.tools or [])
        except (ValidationError, AttributeError) as error:  # a stored choice may lack its message's fields
            raise _unusable(where, error) from error
        if not trajectory.messages():
            raise RowError(f"{where} has a trajectory without messages.", "Delete it, or put its messages in.")
    return item


def _unusable(where: str, error: Exception) -> RowError:
    problem = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    return RowError(f"{where} cannot be judged: {problem}", "Rows hold messages and tools in OpenAI's chat format.")


def _field(row: Any, by: str, where: str) -> Any:
    value = row
    for name in by.split("."):
        if not isinstance(value, dict) or name not in value:
            fields = cast(dict[str, Any], row) if isinstance(row, dict) else None
            known = "none: it is a bare list" if fields is None else ", ".join(fields)
            raise RowError(f"{where} has no field {by}, to group by.", f"The fields of this row: {known}.")
        value = cast(dict[str, Any], value)[name]
    return value
