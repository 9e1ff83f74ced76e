"""A store of replies on disk: cache, replay and audit in one SQLite file.

A reply is stored under the hash of model, parameters, schema and messages, and committed before it is used, so that no
reply is paid for twice, even when the process is killed. (A reply that cannot be written, on a full disk, is used
anyway.) The first reply to a question is its answer permanently. Tasks and processes may share a file. A file that is
not a cassette is refused and left as it is.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from gavel.llm.errors import CassetteError, CassetteMissError
from gavel.llm.types import Message, Reply, Schema

Mode = Literal["cache", "replay"]

_PRIVATE = re.compile(r"(^|_)(key|key_id|token|secret|password|credentials?|headers|client)$")
"""Parameters that identify the caller; they are neither part of the key nor stored."""
FORMAT_VERSION = 1
"""Of the file, in SQLite's `user_version`. 0 = a new file, or one from before there were versions, which has the same
table."""
_HEADER = b"SQLite format 3\0"
_OTHER_FILE = "Name another file for the cassette."
_LOCKED_SECONDS = 60.0
_T = TypeVar("_T")

_TABLE = """
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
    replied_at REAL NOT NULL
) STRICT
"""
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS by_key ON replies (key, id)",
    "CREATE INDEX IF NOT EXISTS by_messages ON replies (messages_key)",
)
_COLUMNS = frozenset(re.findall(r"^    (\w+) ", _TABLE, re.MULTILINE))
_FIRST = """
SELECT text, prompt_tokens, completion_tokens, cost_usd, finish_reason, served_by
FROM replies WHERE key = ? ORDER BY id LIMIT 1
"""


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
        params = {name: value for name, value in self.params.items() if not _PRIVATE.search(name)}
        try:
            return {
                "model": self.model,
                "params": _canonical(params),
                "schema": _canonical(self.schema),
                "messages": _canonical(self.messages),
            }
        except (TypeError, ValueError) as error:
            raise CassetteError(
                f"the question to {self.model} cannot be stored: {error}.",
                "Give the model parameters that JSON can hold, or no cassette.",
            ) from error

    @cached_property
    def key(self) -> str:
        return _hash(_canonical(self.parts))

    @cached_property
    def messages_key(self) -> str:
        return _hash(self.parts["messages"])


class Cassette:
    """Replies in the SQLite file at `path`.

    "cache": known questions are answered from the file, others are asked and stored. "replay": no model is asked, and
    a question that is not in the file is a `CassetteMissError`. A new file is created with its parent directories.
    """

    def __init__(self, path: str | Path, mode: Mode = "cache") -> None:
        if mode not in ("cache", "replay"):
            raise CassetteError(f'a cassette has the mode "cache" or "replay", not "{mode}".')
        self.path = Path(path)
        self.mode: Mode = mode
        self.misses = 0
        """Questions that were not in the file when they were asked."""
        self._asking: dict[tuple[str, int], asyncio.Future[Reply]] = {}
        self._worker: tuple[int, _Worker] | None = None

    def check(self) -> None:
        """Opens the file, unless it is open. Raises `CassetteError` when it is missing or not a cassette."""
        worker = self._current_worker()
        if not worker.is_open:
            worker.submit(lambda _: None).result()

    async def answer(self, question: Question, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """The stored reply to the question, else that of `ask`; concurrent equal questions are asked once.

        Raises what `ask` raises, `CassetteError`, and when replaying `CassetteMissError`.
        """
        asking = question.key, id(asyncio.get_running_loop())
        while others := self._asking.get(asking):
            await asyncio.wait([others])
            if not others.cancelled():
                return replace(others.result(), cached=True)
        mine = self._asking[asking] = asyncio.get_running_loop().create_future()
        try:
            reply = await self._answer(question, ask)
            mine.set_result(reply)
            return reply
        except Exception as error:
            mine.set_exception(error)
            mine.exception()  # marks it as retrieved: it is raised here, and there may be no other waiter
            raise
        finally:
            mine.cancel()
            del self._asking[asking]

    async def _answer(self, question: Question, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        key = question.key
        if reply := await self._run(lambda db: _read(db, key)):
            return reply
        self.misses += 1
        if self.mode == "replay":
            raise await self._run(lambda db: _miss(db, question, self.path))
        reply = await ask()
        try:
            return await asyncio.shield(self._run(lambda db: _write(db, question, reply)))
        except CassetteError as error:  # for example a full disk: the reply is paid for, so it is used
            logging.getLogger(__name__).warning("a reply is used, but not kept: %s", error.message)
            return reply

    def _run(self, work: "Callable[[sqlite3.Connection], _T]") -> asyncio.Future[_T]:
        """Runs the work in the one thread that holds the connection of this process."""
        return asyncio.wrap_future(self._current_worker().submit(work))

    def _current_worker(self) -> "_Worker":
        if self._worker is None or self._worker[0] != os.getpid():  # connections do not survive a fork
            self._worker = os.getpid(), _Worker(self.path, self.mode)
        return self._worker[1]

    def close(self) -> None:
        """Closes the file; the next question opens it again."""
        if self._worker and self._worker[0] == os.getpid():
            self._worker[1].close()
        self._worker = None


class _Worker:
    """A thread that holds a connection."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self._path = path
        self._mode: Mode = mode
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cassette")
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def submit(self, work: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        return self._thread.submit(self._do, work)

    def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            if self._connection is None:
                self._connection = _open(self._path, self._mode)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise CassetteError(f"the cassette {self._path} cannot be used: {error}.", _OTHER_FILE) from error

    def close(self) -> None:
        if self._connection is not None:
            self._thread.submit(self._connection.close).result()
        self._thread.shutdown()


def _open(path: Path, mode: Mode) -> sqlite3.Connection:
    """A connection in autocommit mode: every statement that returned is on file, even when the process is killed.

    Raises `CassetteError` for a file that is not a cassette, or of a newer format, without a change to the file.
    """
    if mode == "replay":
        if not path.exists():
            raise CassetteError(
                f"there is no cassette to replay at {path}.", 'Record it first: Cassette(path, mode="cache").'
            )
        _check_untouched(path)
        connection = _connect_read_only(path, "mode=ro")
        _check_format(connection, path)
        return connection
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_untouched(path)
    connection = sqlite3.connect(path, timeout=_LOCKED_SECONDS, isolation_level=None)
    version = _check_format(connection, path)
    patience = time.monotonic() + _LOCKED_SECONDS
    while True:  # SQLite does not wait for the lock that changing to WAL takes
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = NORMAL")  # survives a kill; only a power cut may cost the last rows
    for statement in (_TABLE, *_INDEXES):
        connection.execute(statement)
    if version < FORMAT_VERSION:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    return connection


def _connect_read_only(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_LOCKED_SECONDS)


def _check_untouched(path: Path) -> None:
    """Refuses a file that is not a cassette before a connection may write to it: SQLite writes to a database with a
    write-ahead log when its last connection closes, and takes a very short file for an empty database."""
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        return
    if not header:
        return
    if header != _HEADER:
        raise _not_a_cassette(path)
    has_log = path.with_name(f"{path.name}-wal").exists()  # without a log, mode=ro would leave an empty one behind
    with closing(_connect_read_only(path, "mode=ro" if has_log else "immutable=1")) as connection:
        _check_format(connection, path)


def _check_format(connection: sqlite3.Connection, path: Path) -> int:
    """The format version of the file, 0 also when it is empty. Closes the connection and raises `CassetteError` when
    the version is newer than ours, or the database is not a cassette."""
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        columns = {row[1] for row in connection.execute("PRAGMA table_info(replies)")}
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    except sqlite3.Error:
        connection.close()
        raise
    if version > FORMAT_VERSION:
        connection.close()
        raise CassetteError(
            f"the cassette {path} has format version {version}, and this Gavel reads up to {FORMAT_VERSION}.",
            "Install the version of Gavel that wrote it, or a newer one, or take another file.",
        )
    if not (columns >= _COLUMNS or (is_empty and version == 0)):
        connection.close()
        raise _not_a_cassette(path)
    return version


def _not_a_cassette(path: Path) -> CassetteError:
    return CassetteError(f"the file {path} cannot be used: it is not a cassette.", _OTHER_FILE)


def _read(db: sqlite3.Connection, key: str) -> Reply | None:
    with closing(db.execute(_FIRST, (key,))) as rows:
        row = rows.fetchone()
    if row is None:
        return None
    text, *rest = row
    return Reply(text.decode("utf-8", "surrogatepass"), *rest, cached=True)


def _write(db: sqlite3.Connection, question: Question, reply: Reply) -> Reply:
    """Stores the reply, and returns the first that is stored: another process may have been faster."""
    row = {
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
    }
    db.execute(f"INSERT INTO replies ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    first = _read(db, question.key)
    assert first is not None
    return replace(reply, text=first.text, finish_reason=first.finish_reason, served_by=first.served_by)


def _miss(db: sqlite3.Connection, question: Question, path: Path) -> CassetteMissError:
    """The error for an unknown question, with the differences from the most similar one on file."""
    columns = "model, params, schema, messages"
    same = db.execute(f"SELECT {columns} FROM replies WHERE messages_key = ?", (question.messages_key,)).fetchall()
    near = same or db.execute(
        f"SELECT {columns} FROM replies ORDER BY model = ? DESC, id DESC LIMIT 50", (question.model,)
    )
    names = list(question.parts)
    stored = [dict(zip(names, row, strict=True)) for row in near]
    if not stored:
        return CassetteMissError(f"the cassette {path} is empty.", 'Record it first: Cassette(path, mode="cache").')

    def likeness(other: dict[str, str]) -> tuple[int, int]:
        return (
            sum(other[name] == question.parts[name] for name in names),
            _first_difference(other["messages"], question.parts["messages"]),
        )

    nearest = max(stored, key=likeness)
    differences = [_difference(name, nearest[name], question.parts[name]) for name in names]
    return CassetteMissError(
        f"the cassette {path} has no reply to this question; from the nearest on file differ "
        + "; ".join(filter(None, differences)),
        'Ask what was recorded, or record it: Cassette(path, mode="cache").',
    )


def _difference(name: str, stored: str, asked: str) -> str:
    if stored == asked:
        return ""
    start = max(0, _first_difference(stored, asked) - 20)
    return f"the {name} (on file …{stored[start : start + 60]}…, asked …{asked[start : start + 60]}…)"


def _first_difference(one: str, other: str) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
