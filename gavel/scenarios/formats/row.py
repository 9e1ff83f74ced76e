"""What passes between the parts of the readers: rows of a file, the attempts found in them, and what was left out."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import JsonValue

from gavel.base.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


class RowError(GavelError):
    """A file holds something that cannot be judged."""


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    """File and line (or item, or sample), for messages."""
    value: Any
    """The decoded JSON value."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory, with the row that it stands in."""

    trajectory: Trajectory
    row: Row
    form: str
    """The format's name, as it is told."""
    task: dict[str, JsonValue] | None = None
    """The format's own name of the task, by field. None = it has none: the opening messages tell the task."""
    prompt: int | None = None
    """Number of its messages that are the prompt, where the format tells them apart: they may hold examples."""


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """A group that stands in the file as a group."""

    group: TrajectoryGroup
    row: Row
    form: str


Found = Attempt | WholeGroup


@dataclass(slots=True)
class Source:
    """The files that are being read, of which there is at least one."""

    paths: list[Path]
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Rows that hold nothing to judge, by reason."""
    notes: list[str] = field(default_factory=list[str])
    """What else a user should know of how it was read."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of rows."""

    name: str
    fields: tuple[str, ...]
    """Fields that every row of it has; `a|b` = one of them. Serves to name the nearest format."""
    fits: Callable[[Any], bool]
    read: Callable[[Sequence[Row], Source], Iterable[Found]]
    task: str = ""
    """What its own names of tasks are told as."""


def is_object(value: Any, *fields: str) -> TypeGuard[dict[str, Any]]:
    """Whether it is a JSON object with these fields; `a|b` = one of them."""
    return isinstance(value, dict) and all(any(name in value for name in each.split("|")) for each in fields)


def at(value: Any, path: str) -> Any:
    """The value of a field, or at a dotted path (`out.0.text`); `ABSENT` where there is none."""
    for part in [path] if is_object(value, path) else path.split("."):
        if is_list(value) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value[part] if is_object(value, part) else ABSENT
    return value


ABSENT = object()


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
