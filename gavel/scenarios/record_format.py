"""The JSON form of a trajectory group in files, with the version of that form.

    line = to_line(group)          # {"format_version":1,"trajectories":[…],…}
    group = from_row(json.loads(line))

A row without a version is of version 1. A row of a later version is refused, never read in part.
"""

import json
from typing import Any

from gavel.base.errors import GavelError
from gavel.scenarios.group import TrajectoryGroup

RECORD_VERSION = 1


class RecordVersionError(GavelError):
    """A record was written by a later version of Gavel, or in no version at all."""


def to_line(group: TrajectoryGroup) -> str:
    """One line of JSON, without its line break."""
    return f'{{"format_version":{RECORD_VERSION},{group.to_json()[1:]}'


def check_version(row: dict[str, Any]) -> None:
    """Raises `RecordVersionError` when this version of Gavel cannot read the row."""
    version = row.get("format_version", 1)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise RecordVersionError(
            f"its format_version is {json.dumps(version, default=str)}, which is no version number",
            f"Restore the file, or set the field to {RECORD_VERSION}, which is what this Gavel writes.",
        )
    if version > RECORD_VERSION:
        raise RecordVersionError(
            f"it has format_version {version!r}; this version of Gavel reads up to {RECORD_VERSION}",
            "Upgrade Gavel: pip install --upgrade gavel-rl",
        )


def from_row(row: Any) -> TrajectoryGroup:
    """The group of a decoded line. Raises `RecordVersionError`, `NotANumberError`, `ValueError` for no group."""
    if isinstance(row, dict):
        check_version(row)  # pyright: ignore[reportUnknownArgumentType]
    return TrajectoryGroup.model_validate(row)
