"""The version of the files of a run directory: model.json, experiment.json and the checkpoints' trainer state.

    check_format_version(None, "model.json")   ->  0   written before versions were recorded; still readable
    check_format_version(1, "model.json")      ->  1
    check_format_version(2, "model.json")      raises FormatVersionError: a newer Gavel wrote it

A reader accepts every version from OLDEST_READABLE to FORMAT_VERSION. A change that older readers would misread raises
FORMAT_VERSION; one that the reader cannot upgrade raises OLDEST_READABLE.
"""

from collections.abc import Mapping
from typing import Any

from gavel.base.errors import GavelError

FORMAT_VERSION = 1
OLDEST_READABLE = 0


class FormatVersionError(GavelError):
    """A file was written in a format that this version of Gavel cannot read."""


def check_format_version(
    found: object, what: str, *, oldest: int = OLDEST_READABLE, newest: int = FORMAT_VERSION
) -> int:
    """The version `found` in a file; None, no recorded version, is 0. `what` names the file in the error.

    Raises `FormatVersionError` for a version outside `oldest` … `newest`.
    """
    version = 0 if found is None else found
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise FormatVersionError(
            f"{what} has the format version {found!r}, which is not a version number",
            "Restore the file, or give the new run another name.",
        )
    if version > newest:
        raise FormatVersionError(
            f"{what} has format version {version}, and this Gavel reads up to {newest}",
            "Upgrade Gavel (pip install --upgrade gavel-rl), or give the new run another name.",
        )
    if version < oldest:
        raise FormatVersionError(
            f"{what} has format version {version}, and this Gavel reads from {oldest} on",
            "Finish the run with the version of Gavel that began it, or give the new run another name.",
        )
    return version


def with_later_settings(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """A description of an earlier Gavel, whose tables lack the settings that came since: they are those of `asked`."""
    completed = dict(begun)
    for name, value in begun.items():
        if isinstance(value, Mapping) and isinstance(asked.get(name), Mapping):
            completed[name] = {**asked[name], **value}  # the tables of settings alone: a reward's weights are one value
    return completed
