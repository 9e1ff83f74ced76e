"""The output file of a scoring run: each group is written as soon as it is judged, so that a second run resumes.

    file = JudgedFile(Path("judged.jsonl"), judge.settings)
    done = file.begin(groups)                  # {0: judged group, …}: what an earlier run has left
    file.append(1, judged)                     # on disk when this returns
    file.finish()                              # all of them, in input order

JSON lines are appended to the file itself. Other formats (a store, CSV, Parquet) are written whole by `finish`; until
then the groups are in a file of JSON lines beside it, `<name>.partial.jsonl`. A line that a killed process left
unfinished is truncated. A group is identified by its content, which judging does not change.

A table has one row per member, without loss: `write_table`, `groups_of_rows`.
"""

import csv
import fcntl
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import JsonValue

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.base.files import replacing, write_atomically
from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.group import TrajectoryGroup, from_row, to_line
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory_store import TrajectoryStore, write_whole

STORE_SUFFIX = ".zst"
TABLE_SUFFIXES = (".csv", ".parquet")
COLUMNS = {
    "group": int,
    "member": int,
    "score": float,
    "standard_error": float,
    "status": str,
    "reason": str,
    "flags": str,
    "explanation": str,
    "independent_reward": float,
    "trajectory": str,
    "group_record": str,
}
"""Name and type of each column."""


class JudgedFileError(GavelError):
    """The output of a scoring run, or a table of judged groups, cannot be written or holds other content."""


def write_table(path: Path, groups: Sequence[TrajectoryGroup], suffix: str) -> None:
    """Writes the table in the format of `suffix`. Raises `JudgedFileError` without Parquet, and `OSError`."""
    rows = [row for number, group in enumerate(groups, 1) for row in _rows(number, group)]
    if suffix == ".parquet":
        try:
            pyarrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise JudgedFileError("Parquet files need pyarrow.", install_line("parquet")) from error
        types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
        schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
        return
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def groups_of_rows(rows: Iterable[Mapping[str, Any]]) -> list[TrajectoryGroup]:
    """The groups in the rows of a table that `write_table` wrote, in order; records may be JSON or read already.
    Raises `JudgedFileError` for those of another."""
    records: list[dict[str, Any]] = []
    for row in rows:
        cells: list[Any] = [row.get(name) for name in ("group_record", "trajectory")]
        cells = [json.loads(cell) if isinstance(cell, str) and cell else cell for cell in cells]
        record, trajectory = cells
        if record:
            records.append({**record, "trajectories": []})
        if not records:
            raise JudgedFileError("the table's first row holds no group.", "Restore the file, or score again.")
        if trajectory:
            records[-1]["trajectories"].append(trajectory)
    return [from_row(record) for record in records]


def _rows(number: int, group: TrajectoryGroup) -> Iterator[dict[str, Any]]:
    """A row for each member; the first, or the only one of an empty group, also has the rest of the group's record."""
    first: dict[str, Any] = {"group_record": to_line(group.model_copy(update={"trajectories": []}))}
    for member, trajectory in enumerate(group, 1):
        judgement = trajectory.judgement or Judgement()
        independent = trajectory.metrics.get("independent_reward")
        yield first | {
            "group": number,
            "member": member,
            "score": judgement.score,
            "standard_error": judgement.standard_error,
            "status": "unscored" if trajectory.reward is None else "scored",
            "reason": _text(judgement.reason),
            "flags": "; ".join(judgement.flags),
            "explanation": _text(judgement.explanation),
            "independent_reward": None if independent is None else float(independent),
            "trajectory": trajectory.to_json(),
        }
        first = {}
    if first:
        yield first | {"group": number}


def _text(text: str | None) -> str | None:
    """Replaces lone surrogates, which neither format can hold; the record keeps them escaped."""
    return text and text.encode("utf-8", "replace").decode()


_OTHER = "Choose another file with --out, or replace it with --fresh."
_BEGINNING = b'{"format_version":'
"""Prefix of every line."""
_LINES = ("", ".jsonl", ".ndjson")
"""Suffixes of JSON lines."""


class JudgedFile:
    """Judged groups in one file, by the index of the input group."""

    def __init__(self, path: Path, settings: Mapping[str, JsonValue], *, is_input: bool = False) -> None:
        """`settings`: of the judge; a file judged with other settings is rejected. `is_input`: the groups, judged
        before, are read from this file, which is replaced only when all are judged again.

        Raises `JudgedFileError` for a suffix that names a format that cannot be written.
        """
        self.path = path.resolve() if path.is_symlink() else path
        if path.suffix not in (*_LINES, STORE_SUFFIX, *TABLE_SUFFIXES):
            raise JudgedFileError(
                f"{path}: judged groups are not written as {path.suffix}.",
                "Name a file that ends in .jsonl, .jsonl.zst, .parquet or .csv (which spreadsheets open).",
            )
        self._settings = settings
        self._is_input = is_input
        is_journal = path.suffix in _LINES and not is_input
        self._journal = self.path if is_journal else self.path.with_name(f"{self.path.name}.partial.jsonl")
        self._file: BinaryIO | None = None
        self._groups: dict[int, TrajectoryGroup] = {}

    def __len__(self) -> int:
        """Number of groups stored so far."""
        return len(self._groups)

    def begin(self, groups: Sequence[TrajectoryGroup], *, fresh: bool = False) -> dict[int, TrajectoryGroup]:
        """Opens the file, and returns those of `groups` that are already judged, by index.

        Groups that lack a vote because a call failed are excluded: they are judged again. `fresh` deletes earlier
        content. Raises `JudgedFileError` for a file that cannot be written, that another process writes, or that holds
        anything but judgements of `groups` with these settings.
        """
        with self._os_errors():
            if self.path.is_dir():
                raise IsADirectoryError("it is a directory")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()
            try:
                if fresh:
                    os.ftruncate(self._fd, 0)
                    if self._journal != self.path and not self._is_input:
                        self.path.unlink(missing_ok=True)
                self._groups = self.peek(groups)
                kept = b"".join(_line(self._groups[index]) for index in sorted(self._groups))
                if kept != self._journal.read_bytes():  # unfinished lines, groups to judge again, or a finished run's
                    write_atomically(self._journal, kept)
                    old, self._file = self._file, self._open()
                    old.close()
            except BaseException:
                self.close()
                raise
        return dict(self._groups)

    def peek(self, groups: Sequence[TrajectoryGroup]) -> dict[int, TrajectoryGroup]:
        """Returns the same as `begin` without writing. Raises `JudgedFileError` as `begin` does."""
        if self._is_input and any(group.judgement is None for group in groups):
            raise JudgedFileError(
                f"{self.path} is the input, and not judged yet: judged groups would replace its rows.",
                "Name another file with --out.",
            )
        indices: dict[str, list[int]] = {}
        for index, group in enumerate(groups):
            indices.setdefault(_content(group), []).append(index)
        judged: dict[int, TrajectoryGroup] = {}
        with self._os_errors():
            for group in self._read():
                if group.judgement is None:
                    raise JudgedFileError(f"{self.path} exists and holds groups that are not judged.", _OTHER)
                check_settings(self.path, group, self._settings, _OTHER)
                if (of_content := indices.get(_content(group))) is None:
                    raise JudgedFileError(
                        f"{self.path} holds judgements of groups that the input does not have.", _OTHER
                    )
                if of_content and _is_final(group):
                    judged[of_content.pop(0)] = group
        return judged

    def append(self, index: int, group: TrajectoryGroup) -> None:
        """Adds the judgement of the input group `index`; it is on disk when this returns."""
        with self._os_errors():
            write_whole(self._fd, _line(group), os.fstat(self._fd).st_size)
            os.fsync(self._fd)
        self._groups[index] = group

    def finish(self) -> None:
        """Writes all groups in input order, in the format of the file's suffix."""
        groups = [self._groups[index] for index in sorted(self._groups)]
        with self._os_errors():
            with replacing(self.path, durable=True) as unfinished:
                if self.path.suffix in TABLE_SUFFIXES:
                    write_table(unfinished, groups, self.path.suffix)
                elif self.path.suffix == STORE_SUFFIX:
                    TrajectoryStore(unfinished).extend(groups)
                else:
                    unfinished.write_bytes(b"".join(map(_line, groups)))
            if self._journal != self.path:
                self._journal.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Closes the file, and deletes it if nothing was judged."""
        if self._file is not None:
            if not os.fstat(self._fd).st_size:
                self._journal.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    @property
    def _fd(self) -> int:
        assert self._file is not None
        return self._file.fileno()

    def _open(self) -> BinaryIO:
        """Opens and locks the journal."""
        file = self._journal.open("ab+", buffering=0)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise JudgedFileError(
                f"{self.path} is being written by another `gavel score`.", "Wait for it, or choose another --out."
            ) from error
        return file

    def _read(self) -> Iterator[TrajectoryGroup]:
        """The groups of the finished file, then those of the journal, without a line that was left unfinished."""
        try:
            if self._journal != self.path and not self._is_input and self.path.exists():
                is_table = self.path.suffix in TABLE_SUFFIXES
                rows = [row.value for row in rows_by_file(self.path)[self.path]] if is_table else []
                yield from groups_of_rows(rows or [{}]) if is_table else TrajectoryStore(self.path)
            *lines, unfinished = self._journal.read_bytes().split(b"\n") if self._journal.is_file() else [b""]
            yield from (from_row(json.loads(line)) for line in lines)
            if not unfinished.startswith(_BEGINNING) and not _BEGINNING.startswith(unfinished):
                raise ValueError
        except (GavelError, ValueError, KeyError) as error:
            raise JudgedFileError(f"{self.path} exists and holds no judged groups.", _OTHER) from error

    @contextmanager
    def _os_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise JudgedFileError(f"{self.path} cannot be written: {why}", "Choose another file with --out.") from error


class JudgedStream:
    """Judged groups on standard output or a device, as JSON lines in input order; nothing is read back."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._waiting: dict[int, TrajectoryGroup] = {}
        self._next = 0

    def __len__(self) -> int:
        return self._next + len(self._waiting)

    def begin(self, groups: Sequence[TrajectoryGroup], *, fresh: bool = False) -> dict[int, TrajectoryGroup]:
        return {}

    peek = begin

    def append(self, index: int, group: TrajectoryGroup) -> None:
        """Writes the group once all before it are written."""
        self._waiting[index] = group
        while self._next in self._waiting:
            self._write(self._next)
            self._next += 1

    def close(self) -> None:
        """Writes the groups that wait for ones that were not judged."""
        for index in sorted(self._waiting):
            self._write(index)

    finish = close

    def _write(self, index: int) -> None:
        try:
            self._stream.write(_line(self._waiting.pop(index)))
            self._stream.flush()
        except OSError as error:
            raise JudgedFileError(
                f"the judged groups cannot be written: {error.strerror or error}.",
                "--out FILE keeps each group as soon as it is judged.",
            ) from error


def judged_output(
    path: Path, settings: Mapping[str, JsonValue], *, is_input: bool = False
) -> JudgedFile | JudgedStream:
    """Opens the output at `path`: `-` is standard output, a device or pipe is written to, a file is resumed.

    Raises `JudgedFileError` when a device cannot be opened, and what `JudgedFile` raises.
    """
    if str(path) == "-":
        return JudgedStream(sys.stdout.buffer)
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            return JudgedStream(path.open("wb"))
        except OSError as error:
            raise JudgedFileError(f"{path} cannot be written: {error.strerror or error}", _OTHER) from error
    return JudgedFile(path, settings, is_input=is_input)


def _line(group: TrajectoryGroup) -> bytes:
    return f"{to_line(group)}\n".encode()


def _content(group: TrajectoryGroup) -> str:
    """A digest of the group's content apart from judging."""
    record: dict[str, Any] = json.loads(group.to_json())
    kept = [{name: one[name] for name in _INPUT_FIELDS} for one in record["trajectories"]]
    text = json.dumps([kept, record["metadata"], record["exceptions"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


_INPUT_FIELDS = ("messages_and_choices", "tools", "additional_histories", "metadata", "status")


def scored_already(
    file: object, groups: Sequence[TrajectoryGroup], settings: Mapping[str, JsonValue]
) -> dict[int, TrajectoryGroup]:
    """The groups of a judged file that this judge (by its settings) has scored finally, by index. Raises
    `JudgedFileError` if another judge did."""
    found: dict[int, TrajectoryGroup] = {}
    for index, group in enumerate(groups):
        if _is_final(group) and any(each.reward is not None for each in group):
            check_settings(file, group, settings, "Leave --retry-unscored out to judge all of it, or name that judge.")
            found[index] = group
    return found


def check_settings(file: object, group: TrajectoryGroup, settings: Mapping[str, JsonValue], remedy: str) -> None:
    """Raises `JudgedFileError` for a group that was judged with different settings."""
    if group.judgement is None or not group.trajectories:
        return  # an empty group is not shown to any judge
    was = group.judgement.settings or {}
    settings = json.loads(json.dumps(settings))
    if different := [name for name in settings if was.get(name) != settings[name]]:
        name = different[0]
        before, now = (json.dumps(one.get(name))[:80] for one in (was, settings))
        more = f" (and {', '.join(different[1:])})" if different[1:] else ""
        raise JudgedFileError(f"{file} was judged with {name} = {before}, not {now}{more}.", remedy)


def _is_final(group: TrajectoryGroup) -> bool:
    """Whether judging again would give the same: no vote was lost to a failed call or a spent budget."""
    return group.judgement is not None and not group.judgement.lost_orders
