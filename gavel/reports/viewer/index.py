"""An index of the trajectory files below a directory, in a database of its own.

    index = Index(Path("runs"), Path("cache.sqlite"))
    index.update()                                  # reads what is new: files are append-only
    index.groups(GroupFilter(show="discordant"))    # a page of them
    index.group("demo/clerk/trajectories/train/000003.jsonl.zst", 5)
    GroupFilter.read({"show": "discordant"}).address(page=2)       # "/groups?show=discordant&page=2"

A file is read once; what was appended since is read from where the last look ended. A file that was replaced is read
anew. The database can be deleted at any time.
"""

import json
import os
import random
import re
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gavel.base.errors import GavelError
from gavel.base.fields import problem
from gavel.base.files import is_inside
from gavel.reports.viewer.annotations import FILE_NAME as ANNOTATIONS
from gavel.reports.viewer.group_summary import SUMMARY, summarize, words_of
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.group import TrajectoryGroup, check_version, from_row, to_line
from gavel.scenarios.judged_file import TABLE_SUFFIXES
from gavel.scenarios.trajectory_store import StoreError, TrajectoryStore

SHOWN = {
    "scored": ("all members scored", "status = 'scored'"),
    "unscored": ("with unscored members", "unscored > 0 AND status != 'unjudged'"),
    "degenerate": ("no signal: identical members", "status = 'degenerate'"),
    "tied": ("all scores equal", "spread = 0 AND members > 1"),
    "flagged": ("flagged by a rule", "flags != ''"),
    "discordant": ("judge ≠ success or hand-written reward", "discordant > 0"),
    "failed": ("failed rollouts", "failed > 0"),
    "truncated": ("truncated rollouts", "truncated > 0"),
    "edited": ("sampled turns edited", "edited > 0"),
    "unjudged": ("not judged", "status = 'unjudged'"),
}
"""Names of the filter, their words, and their conditions."""
SORTS = {
    "newest": ("newest first", "step DESC, groups.id DESC"),
    "oldest": ("oldest first", "step, groups.id"),
    "best": ("best first", "mean DESC, groups.id"),
    "worst": ("worst first", "mean IS NULL, mean, groups.id"),
    "spread": ("widest spread first", "spread DESC, groups.id"),
    "discordant": ("most disagreement first", "discordant DESC, groups.id"),
}
PAGE_SIZE = 50
_WORD = re.compile(r"[^\W_]+", re.UNICODE)


class FilterError(GavelError):
    """An address asks for what there is not."""


class GroupFilter(BaseModel):
    """Empty = all."""

    model_config = ConfigDict(str_strip_whitespace=True, str_max_length=500)

    run: str = ""
    """`project/name`, or the path of a judged file."""
    split: str = ""
    step: str = Field(default="", pattern="^[0-9]{0,8}$")
    task: str = ""
    show: str = Field(default="", pattern=f"^({'|'.join(SHOWN)})?$")
    q: str = ""
    """Words that the group's text has, all of them; the last may be a beginning."""
    sort: str = Field(default="", pattern=f"^({'|'.join(SORTS)})?$")
    page: int = Field(default=1, ge=1, lt=10**8)

    @classmethod
    def read(cls, values: Mapping[str, str]) -> "GroupFilter":
        """Raises `FilterError`; names that are no part of the filter are passed over."""
        try:
            return cls.model_validate({name: value for name, value in values.items() if value.strip()})
        except ValidationError as error:
            raise FilterError(f"there are no such groups: {problem(error)}", "Choose from the form.") from error

    def condition(self) -> tuple[str, list[Any]]:
        """Of SQL, over the columns of `groups`, with its values."""
        named = {name: value for name in ("run", "split", "task", "step") if (value := getattr(self, name))}
        parts, values = ["1", *(f"{name} = ?" for name in named)], list[Any](named.values())  # SQLite casts the step
        if self.show:
            parts.append(f"({SHOWN[self.show][1]})")
        if words := search_words(self.q):
            parts.append("groups.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(words)
        elif self.q:
            parts.append("0")
        return " AND ".join(parts), values

    def address(self, **changes: Any) -> str:
        """The list with these fields changed; from its first page, unless `page` is among them."""
        changed = {**self.model_dump(), "page": 1, **changes}
        kept = {name: value for name, value in changed.items() if value and (name, value) != ("page", 1)}
        return f"/groups?{urlencode(kept, errors='replace')}" if kept else "/groups"


def read_number(text: str) -> int | None:
    """A number in an address; None for anything else."""
    return int(text) if text.isdecimal() and len(text) < 9 else None


def search_words(text: str) -> str:
    """As a query of SQLite's full-text search, in which no character of the text has a meaning; empty without words."""
    words = _WORD.findall(text)
    return " ".join([*(f'"{word}"' for word in words[:-1]), f'"{words[-1]}"*']) if words else ""


_FORMAT = 4
_STORE = ".jsonl.zst"
_LINES = ".jsonl"
_BEGINNING = b'{"format_version":'
"""Of every line of a judged file."""
_FOOTER = 2**16
"""Bytes at the end of a Parquet file, or the beginning of CSV, that name the columns."""
_BATCH = 64
"""Groups that are entered at once."""
_TABLES = f"""
CREATE TABLE files (id INTEGER PRIMARY KEY, path UNIQUE, inode INTEGER, seen INTEGER, state, problem);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file REFERENCES files, number INTEGER, offset INTEGER, run, split,
    step INTEGER, {", ".join(SUMMARY)}
);
CREATE INDEX by_file ON groups (file, number);
CREATE INDEX by_run ON groups (run, split, step);
CREATE INDEX by_task ON groups (task, run);
CREATE INDEX by_step ON groups (step, id);
CREATE VIRTUAL TABLE words USING fts5 (body, content = '');
"""
"""Of a file, `seen` is the byte that it was read to, and `state` how it was when it was read to its end: one that stays
so is not read again, though its end may be an unfinished record."""
_GROUPS = "groups JOIN files ON files.id = groups.file"


class NoSuchGroup(GavelError):
    """An address names a group that is not there."""


Entry = dict[str, Any]
"""A group as lists show it: its file's `path` below the directory that is viewed, its `number` there from 0, `run`
(`project/name`, or of a judged file its path), `split` and `step`, the figures of `summarize`, and the `offset` of its
record."""


class Index:
    """Used by several threads; one of them updates."""

    def __init__(self, root: Path, database: Path, only: Path | None = None) -> None:
        """Makes the database where there is none, or one of another format. `only`: a directory or file below `root`
        to which the index is limited. Raises `GavelError`.
        """
        self.root = root
        self._only = only or root
        self.progress: float | None = None
        """Share of the bytes that the update going on has read; None while there is none."""
        self._links: list[str] = []
        """Files that are not read: links out of the directory."""
        self._database = database
        self._updating = threading.Lock()
        try:
            database.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(database)) as connection:
                if connection.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
                    return
            for end in ("", "-wal", "-shm"):
                Path(f"{database}{end}").unlink(missing_ok=True)
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {_FORMAT};COMMIT;")
        except (OSError, sqlite3.Error) as error:
            raise GavelError(
                f"{database} cannot be used as an index: {error}",
                "Delete it, or name another directory by XDG_CACHE_HOME.",
            ) from error

    def update(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Enters what is new on disk. Raises `GavelError` where the index cannot be written."""
        with self._updating, self._connection() as connection:
            known = {row["path"]: row for row in connection.execute("SELECT * FROM files")}
            files = {path.relative_to(self.root).as_posix(): path for path in _trajectory_files(self._only)}
            self._links = [path for path, file in files.items() if not is_inside(self.root, file)]
            for path in self._links:
                del files[path]
            for path in known.keys() - files.keys():
                _forget(connection, path)
            news: dict[str, int] = {}
            for path, file in files.items():
                (size, inode, _), row, seen = _state(file), known.get(path), 0
                if row is not None and row["state"] == str(_state(file)):
                    continue
                if row is not None and row["inode"] == inode and row["seen"] <= size:
                    seen = row["seen"]
                elif row is not None:
                    _forget(connection, path)
                news[path] = size - seen
            done, everything = 0, max(sum(news.values()), 1)
            try:
                for path in sorted(news, key=lambda path: files[path].name, reverse=True):
                    self.progress = done / everything
                    for read in self._enter(connection, path, files[path]):
                        self.progress = (done + read) / everything
                        if stop():
                            return
                    done += news[path]
            finally:
                self.progress = None

    def groups(self, wanted: GroupFilter) -> tuple[list[Entry], int]:
        """A page of the groups, and how many there are in all."""
        (condition, values), order = wanted.condition(), SORTS[wanted.sort or "newest"][1]
        (count,) = self._select(f"count(*) FROM groups WHERE {condition}", *values)[0]
        rows = self._select(
            f"* FROM {_GROUPS} WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?",
            *[*values, PAGE_SIZE, PAGE_SIZE * (wanted.page - 1)],
        )
        return list(map(dict, rows)), count

    def entry(self, path: str, number: int) -> Entry:
        """Raises `NoSuchGroup`."""
        for row in self._select(f"* FROM {_GROUPS} WHERE path = ? AND number = ?", path, number):
            return dict(row)
        raise NoSuchGroup(f"there is no group {number} in {path}", "It may have been deleted, or not be read yet.")

    def group(self, path: str, number: int) -> TrajectoryGroup:
        """The group itself, from its file. Raises `NoSuchGroup`, and `StoreError` for a file that changed meanwhile."""
        entry = self.entry(path, number)
        if not is_inside(self.root, self.root / path):
            raise NoSuchGroup(f"{path} is a link to a file elsewhere", "Copy that file here.")
        for _, _, row in _stored_rows(self.root / path, entry["offset"]):
            try:
                return from_row(row)
            except (ValueError, TypeError) as error:
                raise StoreError(f"group {number} of {path} cannot be read: {error}", "Look at the file.") from error
        raise StoreError(f"{path} is shorter than it was", "Reload the page.")

    def same_task(self, entry: Entry) -> list[Entry]:
        """Groups of the same task in the same run, by step."""
        wanted = GroupFilter(run=entry["run"], task=entry["task"], sort="oldest")
        return self.groups(wanted)[0] if wanted.task else []

    def draw(self, wanted: GroupFilter, without: Set[tuple[str, int]]) -> tuple[str, int] | None:
        """File and number of a group of several members, at random; None where all are among `without`."""
        condition, values = wanted.condition()
        rows = self._select(f"path, number FROM {_GROUPS} WHERE {condition} AND members > 1", *values)
        open_ones = [(path, number) for path, number in rows if (path, number) not in without and path != ANNOTATIONS]
        return random.choice(open_ones) if open_ones else None

    def choices(self, column: str, run: str = "") -> list[str]:
        """The values of a column (`run`, `split`, `step`), for forms."""
        where, values = ("WHERE run = ?", [run]) if run else ("", [])
        rows = self._select(f"DISTINCT {column} FROM groups {where} ORDER BY {column}", *values)
        return [str(value) for (value,) in rows if value not in (None, "")]

    def counts(self) -> dict[str, int]:
        """Groups by run."""
        return dict(map(tuple, self._select("run, count(*) FROM groups GROUP BY run")))

    def problems(self) -> list[tuple[str, str]]:
        """Files that could not be read, or not whole, with the reason."""
        found = self._select("path, problem FROM files WHERE problem != '' ORDER BY path")
        links = [(path, "it is a link to a file elsewhere; copy that one here") for path in self._links]
        return [*map(tuple, found), *links]

    def _select(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._connection() as connection:
            return connection.execute(f"SELECT {query}", values).fetchall()

    def _enter(self, connection: sqlite3.Connection, path: str, file: Path) -> Iterator[int]:
        """Enters what the file has anew; gives the bytes that were read after every batch."""
        (size, inode, _), state, problem = _state(file), str(_state(file)), ""
        new = "INSERT OR IGNORE INTO files (path, inode, seen, state, problem) VALUES (?, ?, 0, '', '')"
        connection.execute(new, (path, inode))
        id, begin = connection.execute("SELECT id, seen FROM files WHERE path = ?", (path,)).fetchone()
        (number,) = connection.execute("SELECT count(*) FROM groups WHERE file = ?", (id,)).fetchone()
        (run, split, step), end = place_of(path), begin
        try:
            for offset, end, row in _stored_rows(file, begin):
                words = _storable(words_of(row))
                named = {"file": id, "number": number, "offset": offset, "run": run, "split": split, "step": step}
                named |= summarize(row)
                into = f"INSERT INTO groups ({', '.join(named)}) VALUES ({', '.join('?' * len(named))})"
                entered = connection.execute(into, [*map(_storable, named.values())])
                connection.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (entered.lastrowid, words))
                number += 1
                if number % _BATCH == 0:
                    connection.execute("UPDATE files SET seen = ? WHERE id = ?", (end, id))
                    connection.commit()
                    yield end - begin
            if end < size:
                rest = f"its last {size - end:,} bytes are no whole record"
                problem = f"{rest}: being written, left by a kill, or damaged"
        except GavelError as error:
            problem = f"{error.message}. {error.remedy}"
        connection.execute("UPDATE files SET seen = ?, state = ?, problem = ? WHERE id = ?", (end, state, problem, id))
        connection.commit()
        yield end - begin

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._database, timeout=30)) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except OverflowError as error:  # SQLite's integers end at 2 ** 63 - 1
            raise NoSuchGroup("a number in the address is too large", "Groups, steps and pages are counted.") from error
        except sqlite3.Error as error:
            raise GavelError(
                f"the index {self._database} cannot be used: {error}", "Delete it: it is made anew."
            ) from error


def place_of(path: str) -> tuple[str, str, int | None]:
    """Run, split and step: of `demo/clerk/trajectories/train/000003.jsonl.zst` "demo/clerk", "train" and 3; any other
    file is its own run."""
    match path.removesuffix(_STORE).split("/"):
        case [*run, "trajectories", split, step] if len(run) > 1 and step.isdecimal():
            return "/".join(run), split, int(step)
        case _:
            return path, "", None


def _trajectory_files(root: Path) -> Iterator[Path]:
    """Trajectory stores, files of JSON lines that begin as Gavel's do, and judged tables; not those that are being
    written anew, nor those whose name is no text."""
    if root.is_file():
        yield root
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        for file in (Path(directory, name) for name in files if not name.startswith(".")):
            if file.name.endswith((_STORE, _LINES, *TABLE_SUFFIXES)) and str(file).isprintable() and holds_groups(file):
                yield file


def holds_groups(file: Path) -> bool:
    """Whether a file is named as a trajectory store, begins with a line of a judged file, or is a judged table."""
    if file.name.endswith(_STORE):
        return True
    try:
        with file.open("rb") as stream:
            if file.suffix not in TABLE_SUFFIXES:
                return stream.read(len(_BEGINNING)) == _BEGINNING
            stream.seek(max(0, file.stat().st_size - _FOOTER) if file.suffix == ".parquet" else 0)
            return b"group_record" in stream.read(_FOOTER)
    except OSError:
        return False


def _stored_rows(file: Path, offset: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(begin, end, row) of each record from `offset` on; of a table, which is read whole, the group's number
    stands for its bytes. Raises `StoreError`, and `RowError` for a damaged table."""
    if file.name.endswith(_STORE):
        yield from TrajectoryStore(file).rows_from(offset)
        return
    if file.suffix in TABLE_SUFFIXES:
        groups = read_groups(file)
        for number, group in enumerate(groups[offset:], offset + 1):
            yield number - 1, number if number < len(groups) else file.stat().st_size, json.loads(to_line(group))
        return
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return  # it is being written
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("it is no JSON object")
                check_version(row)  # pyright: ignore[reportUnknownArgumentType]
                yield offset, offset + len(line), row
                offset += len(line)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{file} cannot be read at byte {offset}: {error}", "Look at the file.") from error


def _state(file: Path) -> tuple[int, int, int]:
    """Its size, inode and time of change."""
    try:
        found = file.stat()
    except OSError:
        return 0, 0, 0
    return found.st_size, found.st_ino, found.st_mtime_ns


def _forget(connection: sqlite3.Connection, path: str) -> None:
    # Their words stay, under numbers that are never used again: a search of a table without content cannot delete.
    connection.execute("DELETE FROM groups WHERE file = (SELECT id FROM files WHERE path = ?)", (path,))
    connection.execute("DELETE FROM files WHERE path = ?", (path,))
    connection.commit()


def _storable(value: Any) -> Any:
    """A text without halves of surrogate pairs, which SQLite does not take."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
