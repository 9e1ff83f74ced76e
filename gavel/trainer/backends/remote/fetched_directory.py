"""A directory of the server's, fetched file by file and checked by hash; it appears whole, and replaces nothing."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from gavel.trainer.backends.remote.address import RemoteBackendError
from gavel.trainer.backends.remote.connection import Connection
from gavel.trainer.runs.export_mark import ExportError, taken
from gavel.trainer.runs.file_hash import file_sha256

_FETCHES = 2
"""Of a file that arrives altered, or of which another version was begun."""


def check_target(target: Path, files: Mapping[str, str] | None = None) -> bool:
    """Whether it is there already, with these files. Raises `ExportError` when something else is."""
    if not target.exists() and not target.is_symlink():
        return False
    if files is None:
        if not target.is_dir():
            raise taken(target)
        return True
    if any(not (target / name).is_file() or file_sha256(target / name) != sha256 for name, sha256 in files.items()):
        raise taken(target)
    return True


def fetch_directory(connection: Connection, path: str, files: Mapping[str, str], target: Path) -> None:
    """Fetches `files` (their SHA-256 by name) from `path` into `target`, going on where an earlier call was cut off.

    Raises `ExportError` when something else is there, or it cannot be written, and `RemoteBackendError`.
    """
    if check_target(target, files):
        return
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        for name, sha256 in files.items():
            file = unfinished / name
            if not file.resolve().is_relative_to(unfinished.resolve()):
                raise RemoteBackendError(f"the server names a file outside the export: {name}", "Is it to be trusted?")
            _fetch(connection, f"{path}/{name}", file, sha256)
        for file in [file for file in unfinished.rglob("*") if file.is_file()]:
            if file.relative_to(unfinished).as_posix() not in files:
                file.unlink()  # of another export that was cut off
        unfinished.rename(target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ExportError(f"{target} cannot be written: {error}", "Make room, or name another directory.") from error


def _fetch(connection: Connection, path: str, file: Path, sha256: str) -> None:
    for _ in range(_FETCHES):
        if file.is_file() and file_sha256(file) == sha256:
            return
        connection.fetch(path, file)
        if file_sha256(file) == sha256:
            return
        file.unlink()
    raise RemoteBackendError(f"{file.name} arrived with another SHA-256", "Export it again.")
