"""Where a cassette keeps its replies: the protocol of a storage, the thread that uses it, and the SQLite file.

Processes may share a storage. One that is about to ask a question takes a lease on it, which it renews until the reply
is stored, so that the others wait for that reply. A lease ends with its process: at once where the dead process ran on
this machine, else `LEASE_SECONDS` after it was last renewed.
"""

import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gavel.base.processes import holder_name, is_dead
from gavel.llm.errors import CassetteError
from gavel.llm.types import Message, Reply, Schema

LEASE_SECONDS = 10.0
_RENEWAL_SECONDS = 2.0
_T = TypeVar("_T")
_PRIVATE = re.compile(r"(^|_)(key|key_id|token|secret|password|credentials?|headers|client)$")
"""Parameters that identify the caller; they are neither part of the key nor stored."""


@dataclass(frozen=True)
class Question:
    """A request to a model: everything that its reply depends on."""

    model: str
    params: Mapping[str, Any]
    schema: Schema
    messages: Sequence[Message]

    @cached_property
    def parts(self) -> dict[str, str]:
        """Canonical JSON of each part. Raises `CassetteError` for a parameter that JSON cannot hold."""
        try:
            return {
                "model": self.model,
                "params": _canonical(self.public_params),
                "schema": _canonical(self.schema),
                "messages": _canonical(self.messages),
            }
        except (TypeError, ValueError) as error:
            raise CassetteError(
                f"the question to {self.model} cannot be stored: {error}.",
                "Give the model parameters that JSON can hold, or no cassette.",
            ) from error

    @property
    def public_params(self) -> dict[str, Any]:
        """The parameters without those that identify the caller."""
        return {name: value for name, value in self.params.items() if not _PRIVATE.search(name)}

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits."""
        return _hash(_canonical(self.parts))

    @cached_property
    def messages_key(self) -> str:
        return _hash(self.parts["messages"])


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A question with its reply."""

    question: Question
    reply: Reply
    repaired_by: str = ""
    """Key of the question that sent an unusable reply back, and whose reply is kept as well; empty for a reply that
    could be used."""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply on file."""

    reply: Reply
    repaired_by: str
    """As in `Entry`."""


class Storage(Protocol):
    """Keeps replies and leases. Methods may block; what cannot be read or written is a `CassetteError`."""

    def replies(self, key: str) -> list[StoredReply]:
        """The replies to a question, oldest first."""
        ...

    def keep(self, entries: Sequence[Entry]) -> None:
        """Stores all entries or none; a reply that the question has on file already is not stored twice."""
        ...

    def similar(self, question: Question) -> list[Mapping[str, str]]:
        """The parts of stored questions that resemble an unknown one; empty when nothing is stored."""
        ...

    def claim(self, key: str, holder: str, dead: str = "") -> str | None:
        """Takes the lease on a question where it is free, over, the holder's own, or that of the `dead` process.

        None = the holder has it; else who has it (empty = it was released just now).
        """
        ...

    def renew(self, keys: Collection[str], holder: str) -> None:
        """Prolongs the holder's leases on these questions."""
        ...

    def release(self, key: str, holder: str) -> None:
        """Ends the holder's lease, if it has one."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """What is on file of a question."""

    replies: list[StoredReply]
    is_mine: bool | None = None
    """Whether this process is to ask it; None = a lease was not asked for."""


class StorageThread:
    """The one thread of a process that uses a storage, which it opens when the first work comes; renews the leases."""

    def __init__(self, open_storage: Callable[[], Storage]) -> None:
        self.holder = holder_name()
        self._open_storage = open_storage
        self._storage: Storage | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cassette")
        self._leases: set[str] = set()
        self._closing = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def commits_in_order(self) -> bool:
        """Whether all that is made of a reply is committed after the reply: then nobody waits until it is kept."""
        return False

    def submit(self, work: Callable[[Storage], _T]) -> "Future[_T]":
        return self._thread.submit(self._do, work)

    def _do(self, work: Callable[[Storage], _T]) -> _T:
        if self._storage is None:
            self._storage = self._open_storage()
        return work(self._storage)

    def look(self, key: str, *, claims: bool, known: int = 0) -> "Future[Look]":
        """Looks a question up; where no more than the `known` replies are on file, claims it if it `claims`."""

        def work(storage: Storage) -> Look:
            replies = storage.replies(key)
            if not claims or len(replies) > known:
                return Look(replies)
            is_mine = self._claim(storage, key)
            return Look(storage.replies(key), is_mine)

        return self.submit(work)

    def _claim(self, storage: Storage, key: str) -> bool:
        """Whether this process is to ask the question."""
        try:
            other = storage.claim(key, self.holder)
            if other and is_dead(other):
                other = storage.claim(key, self.holder, dead=other)
        except CassetteError as error:  # such as a full disk: then a question may be paid for twice
            logging.getLogger(__name__).warning("a question is asked unclaimed: %s", error.message)
            return True
        if other is None:
            self._hold(key)
        return other is None

    def _hold(self, key: str) -> None:
        self._leases.add(key)
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="cassette leases", daemon=True)
            self._renewing.start()

    def keep(self, entries: Sequence[Entry]) -> "Future[None]":
        """Stores the entries and ends the lease on the question of the last one."""

        def work(storage: Storage) -> None:
            storage.keep(entries)
            self._release(storage, entries[-1].question.key)

        return self.submit(work)

    def release(self, key: str) -> None:
        """Ends the lease once the work before is done, if this process has it then; does not wait."""
        self.submit(lambda storage: self._release(storage, key))

    def _release(self, storage: Storage, key: str) -> None:
        if key in self._leases:
            self._leases.discard(key)
            storage.release(key, self.holder)

    def _renew(self) -> None:
        while not self._closing.wait(_RENEWAL_SECONDS):
            if not self._leases:
                continue
            try:
                self.submit(lambda storage: storage.renew(tuple(self._leases), self.holder)).result()
            except CassetteError:  # such as a full disk: the leases end, and a question may be paid for twice
                continue
            except RuntimeError:  # the interpreter exits
                return

    def close(self) -> None:
        self._closing.set()
        if (storage := self._storage) is not None:
            self._thread.submit(storage.close).result()
        self._thread.shutdown()


FORMAT_VERSION = 2
"""In SQLite's `user_version`."""
_HEADER = b"SQLite format 3\0"
_OTHER_FILE = "Name another file for the cassette."
_LOCKED_SECONDS = 30.0
"""For how long a statement waits for another program's lock."""
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS replies (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    messages_key TEXT NOT NULL,
    model TEXT NOT NULL,
    params TEXT NOT NULL,
    schema TEXT NOT NULL,
    messages TEXT NOT NULL,
    text BLOB NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cost_usd REAL,
    finish_reason TEXT NOT NULL,
    served_by TEXT NOT NULL,
    replied_at REAL NOT NULL,
    repaired_by TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS by_key ON replies (key, id);
CREATE INDEX IF NOT EXISTS by_messages ON replies (messages_key);
CREATE TABLE IF NOT EXISTS leases (key TEXT PRIMARY KEY, holder TEXT NOT NULL, renewed_at REAL NOT NULL) STRICT;
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""
_COLUMNS = frozenset(re.findall(r"^    (\w+) ", _TABLES, re.MULTILINE))
_REPLY = "text, prompt_tokens, completion_tokens, cost_usd, finish_reason, served_by, repaired_by"
_CLAIM = f"""
INSERT INTO leases VALUES (:key, :holder, :now) ON CONFLICT (key) DO UPDATE SET holder = :holder, renewed_at = :now
WHERE holder IN (:holder, :dead) OR abs(:now - renewed_at) > {LEASE_SECONDS}
"""


class SqliteStorage:
    """The replies in one SQLite file, each committed before `keep` returns; it survives a kill of its process."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Opens the file; with `read_only` it must exist, and nothing is written to it.

        Raises `CassetteError` for a file that is no cassette, or of a newer format, and leaves it as it is.
        """
        self._path = path
        with _cassette_errors(path):
            if read_only and not path.exists():
                raise CassetteError(
                    f"there is no cassette to replay at {path}.", 'Record it first: Cassette(path, mode="cache").'
                )
            _check_file(path)
            self._db = _connect_read_only(path, "mode=ro") if read_only else _open_to_write(path)

    def replies(self, key: str) -> list[StoredReply]:
        with _cassette_errors(self._path):
            rows = self._db.execute(f"SELECT {_REPLY} FROM replies WHERE key = ? ORDER BY id", (key,)).fetchall()
        return [
            StoredReply(Reply(text.decode("utf-8", "surrogatepass"), *rest, cached=True, key=key), repaired_by)
            for text, *rest, repaired_by in rows
        ]

    def question(self, key: str) -> Mapping[str, str] | None:
        """The parts of a stored question, as JSON: `model`, `params`, `schema` and `messages`."""
        return next(iter(self._questions("WHERE key = ? ORDER BY id LIMIT 1", key)), None)

    def similar(self, question: Question) -> list[Mapping[str, str]]:
        same = self._questions("WHERE messages_key = ?", question.messages_key)
        return same or self._questions("ORDER BY model = ? DESC, id DESC LIMIT 50", question.model)

    def _questions(self, which: str, value: str) -> list[Mapping[str, str]]:
        names = ("model", "params", "schema", "messages")
        with _cassette_errors(self._path):
            rows = self._db.execute(f"SELECT {', '.join(names)} FROM replies {which}", (value,)).fetchall()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def keep(self, entries: Sequence[Entry]) -> None:
        with _cassette_errors(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for row in map(_row, entries):
                    same = (row["key"], row["text"])
                    if self._db.execute("SELECT 1 FROM replies WHERE key = ? AND text = ?", same).fetchone() is None:
                        names, marks = ", ".join(row), ", ".join("?" * len(row))
                        self._db.execute(f"INSERT INTO replies ({names}) VALUES ({marks})", tuple(row.values()))
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def claim(self, key: str, holder: str, dead: str = "") -> str | None:
        values = {"key": key, "holder": holder, "dead": dead, "now": time.time()}
        with _cassette_errors(self._path):
            if self._db.execute(_CLAIM, values).rowcount:
                return None
            row = self._db.execute("SELECT holder FROM leases WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    def renew(self, keys: Collection[str], holder: str) -> None:
        rows = [(time.time(), key, holder) for key in keys]
        with _cassette_errors(self._path):
            self._db.executemany("UPDATE leases SET renewed_at = ? WHERE key = ? AND holder = ?", rows)

    def release(self, key: str, holder: str) -> None:
        with _cassette_errors(self._path):
            self._db.execute("DELETE FROM leases WHERE key = ? AND holder = ?", (key, holder))

    def close(self) -> None:
        with _cassette_errors(self._path):
            self._db.close()


@contextmanager
def _cassette_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise CassetteError(f"the cassette {path} cannot be used: {error}.", _OTHER_FILE) from error


def check_directory(path: Path) -> None:
    """Raises `CassetteError` when no file can be made at `path`; makes none, nor its directories."""
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    what = "directory" if not parent.is_dir() else "writable" if not os.access(parent, os.W_OK | os.X_OK) else ""
    if what:
        raise CassetteError(f"the cassette {path} cannot be used: {parent} is not {what}.", _OTHER_FILE)


def _row(entry: Entry) -> dict[str, object]:
    question, reply = entry.question, entry.reply
    return {
        "key": question.key,
        "messages_key": question.messages_key,
        **question.parts,
        "text": reply.text.encode("utf-8", "surrogatepass"),
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cost_usd": reply.cost_usd,
        "finish_reason": reply.finish_reason,
        "served_by": reply.served_by,
        "replied_at": time.time(),
        "repaired_by": entry.repaired_by,
    }


def _open_to_write(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode: every statement that returned is on file, even when the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=_LOCKED_SECONDS, isolation_level=None)
    deadline = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:  # for the lock of this change SQLite does not wait
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous = NORMAL")  # survives a kill; only a power cut may cost the last rows
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'leases'").fetchone():
        db.executescript(_TABLES)
    return db


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


def _connect_read_only(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_LOCKED_SECONDS)


def _check_file(path: Path) -> None:
    """Refuses a file that is not a cassette before a connection may write to it: SQLite writes to a database with a
    write-ahead log when its last connection closes, and takes a very short file for an empty database."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    with path.open("rb") as file:
        is_database = file.read(len(_HEADER)) == _HEADER
    has_log = path.with_name(f"{path.name}-wal").exists()  # without a log, mode=ro would leave an empty one behind
    with closing(_connect_read_only(path, "mode=ro" if has_log else "immutable=1")) as db:
        columns = {row[1] for row in db.execute("PRAGMA table_info(replies)")} if is_database else set[str]()
        version: int = db.execute("PRAGMA user_version").fetchone()[0] if is_database else 0
        is_empty = is_database and not version and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if columns and version > FORMAT_VERSION:
        raise CassetteError(
            f"the cassette {path} has format version {version}, and this Gavel reads up to {FORMAT_VERSION}.",
            "Install the version of Gavel that wrote it, or a newer one, or take another file.",
        )
    if not is_empty and not columns >= _COLUMNS:
        raise CassetteError(f"the file {path} cannot be used: it is not a cassette.", _OTHER_FILE)
