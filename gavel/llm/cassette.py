"""A store of replies for caching, replay and audit, in one SQLite file or another storage.

A reply is stored under the hash of model, parameters, schema and messages, and committed before it is used, so that
none is paid for twice, even when the process is killed. (One that cannot be written, on a full disk, is used anyway.)
Only a question that two processes ask at the same moment is asked twice. Unusable replies are stored only with the
repair that fixes them, so that a repaired conversation replays unchanged.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from gavel.llm.budget import ledger_of_this_work
from gavel.llm.completion import complete_in_time
from gavel.llm.errors import CassetteError
from gavel.llm.types import Accept, Message, Reply, Schema

_PRIVATE = re.compile(
    r"(^|_)(key|apikey|key_id|token|secret|password|credentials?|headers?|client|token_provider)$", re.IGNORECASE
)
"""Parameters that identify the caller; they are neither part of the key nor stored."""
Mode = Literal["cache", "replay"]
_T = TypeVar("_T")


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
                "params": _canonical(public_params(self.params)),
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
        """The question's hash, 64 hexadecimal digits."""
        return hashlib.sha256("\n".join(self.parts.values()).encode("utf-8", "surrogatepass")).hexdigest()


def public_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without those that identify the caller: `api_base` and `max_tokens`, but not `api_key`."""
    return {name: value for name, value in params.items() if not _PRIVATE.search(name)}


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


Entry = tuple[Question, Reply]
"""A question with its reply."""


class Storage:
    """Stores replies. Futures of reading and writing may have the exception `CassetteError`."""

    def replies(self, key: str) -> "Future[list[Reply]]":
        """The replies to a question, oldest first."""
        raise NotImplementedError

    def keep(self, entries: Sequence[Entry]) -> "Future[None]":
        """Stores all entries or none; a reply that is already on file for the question is not stored twice."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the storage, if it is this cassette's own."""


class Cassette:
    """Replies in a storage: an SQLite file at a path, or another one of this process.

    "cache": known questions are answered from the storage, others are asked and stored. "replay": no model is asked,
    and a question that is not stored is a `CassetteError`. A new file is created with its parent directories.
    """

    complete = staticmethod(complete_in_time)
    """Sends the request of a question that is not stored."""

    def __init__(self, storage: str | Path | Storage, mode: Mode = "cache") -> None:
        self.path = None if isinstance(storage, Storage) else Path(storage)
        """The file; None = another storage."""
        self.mode: Mode = mode
        self.asks_now = mode == "cache"
        """Whether an unknown question is asked at once."""
        self.replayed = 0
        """Questions that were answered from the storage."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._asking: dict[str, Future[Reply]] = {}
        """Key -> the pending reply, shared by all event loops of this process."""
        self._storage: Storage | None = storage if isinstance(storage, Storage) else None

    def check(self) -> None:
        """Raises `CassetteError` if the storage is missing or unusable. Opens it, but creates no file."""
        if self.path is None:
            return
        if self.mode == "cache" and not self.path.exists():
            _check_directory(self.path)
        else:
            self._current_storage().replies("").result()

    async def answer(
        self,
        question: Question,
        ask: Callable[[], AbstractAsyncContextManager[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[Entry] = (),
    ) -> Reply:
        """The stored reply to the question, or else that of `ask`; concurrent equal questions are asked once.

        `ask` gives the reply to a block, which stores it. `accept` says whether a reply is usable; an unusable one is
        returned and not stored. None = all are. `repairs`: the unusable replies that the question sends back, with
        their questions, oldest first; they are stored together with a usable reply. Raises what `ask` raises, and
        `CassetteError`.
        """
        storage, key = self._current_storage(), question.key
        ledger_of_this_work().questions.add(key)
        while True:
            with self._lock:
                is_new = key not in self._asking
                mine = self._asking.setdefault(key, Future())
            if is_new:
                break
            await asyncio.wait([asyncio.wrap_future(mine)])
            if not mine.cancelled():
                self.replayed += 1
                return replace(mine.result(), cached=True)
        try:
            reply = await self.stored(question, accept)
            if reply is None and self.mode == "replay":
                where = f"the cassette {self.path}" if self.path else "the cassette"
                raise CassetteError(
                    f"{where} has no reply of {question.model} to this question with these parameters.",
                    'Ask what was recorded, or record it: Cassette(path, mode="cache").',
                )
            if reply is None:
                async with ask() as fresh:
                    reply = replace(fresh, key=key)
                    if accept is None or accept(reply):
                        keeping = asyncio.wrap_future(storage.keep([*_repaired(repairs, key), (question, reply)]))
                        keeping.add_done_callback(_warn_if_lost)
                        await asyncio.wait([keeping])
            mine.set_result(reply)
            return reply
        except Exception as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asking[key]
            mine.cancel()

    async def stored(self, question: Question, accept: Accept | None = None) -> Reply | None:
        """The stored reply to the question, as `answer` would return it; None = it has to be asked."""
        kept = await asyncio.wrap_future(self._current_storage().replies(question.key))
        usable = (each for each in kept if each.repaired_by or accept is None or accept(each))
        found = next(usable, kept[0] if kept and self.mode == "replay" else None)
        self.replayed += found is not None
        return found

    def _current_storage(self) -> Storage:
        if self._pid != os.getpid():  # neither connections nor the parent's pending questions survive a fork
            self._pid, self._storage = os.getpid(), None
            self._lock, self._asking = threading.Lock(), {}
        if self._storage is None:
            assert self.path is not None
            self._storage = SqliteStorage(self.path, read_only=self.mode == "replay")
        return self._storage

    def close(self) -> None:
        """Closes the storage; the next question opens it again."""
        if self._storage is not None and self._pid == os.getpid():
            self._storage.close()
        self._storage = None


def _repaired(repairs: Sequence[Entry], key: str) -> list[Entry]:
    keys = [*(question.key for question, _ in repairs[1:]), key]
    return [(each, replace(reply, repaired_by=later)) for (each, reply), later in zip(repairs, keys, strict=False)]


def _warn_if_lost(keeping: "asyncio.Future[None]") -> None:
    """Warns if the reply could not be stored, for example on a full disk; a paid reply is used anyway."""
    if keeping.cancelled() or (error := keeping.exception()) is None:
        return
    if not isinstance(error, CassetteError):
        raise error
    logging.getLogger(__name__).warning("a reply is used, but not kept: %s", error.message)


FORMAT_VERSION = 5
"""File format version, in SQLite's `user_version`."""
_APPLICATION = 0x6761766C
"""What SQLite's `application_id` is of a cassette: "gavl"."""
_OTHER_FILE = "Name another file for the cassette."
_LOCKED_SECONDS = 30.0
"""Seconds that a statement waits for another program's lock."""
_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS replies (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    question TEXT NOT NULL,    -- its parts, each as JSON
    text TEXT NOT NULL,        -- of the reply, as JSON
    usage TEXT NOT NULL,       -- the reply's other fields
    replied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;
CREATE INDEX IF NOT EXISTS by_key ON replies (key, id);
PRAGMA user_version = {FORMAT_VERSION};
PRAGMA application_id = {_APPLICATION};
COMMIT;
"""
_KEEP = """
INSERT INTO replies (key, question, text, usage) SELECT ?1, ?2, ?3, ?4
WHERE NOT EXISTS (SELECT 1 FROM replies WHERE key = ?1 AND text = ?3)
"""
_USAGE = ("prompt_tokens", "completion_tokens", "cost_usd", "finish_reason", "served_by", "repaired_by")


class SqliteStorage(Storage):
    """The replies in one SQLite file, each committed before its future is done; it survives a kill of its process.

    One thread opens the file at first use. With `read_only` it must exist, and nothing is written to it. A file that is
    no cassette, or of another format, is left unchanged.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cassette")

    def replies(self, key: str) -> "Future[list[Reply]]":
        def read(db: sqlite3.Connection) -> list[Reply]:
            rows = db.execute("SELECT text, usage FROM replies WHERE key = ? ORDER BY id", (key,)).fetchall()
            return [Reply(json.loads(text), **json.loads(usage), cached=True, key=key) for text, usage in rows]

        return self._thread.submit(self._run, read)

    def keep(self, entries: Sequence[Entry]) -> "Future[None]":
        def write(db: sqlite3.Connection) -> None:
            with db:
                for question, reply in entries:
                    usage = json.dumps({name: getattr(reply, name) for name in _USAGE})
                    db.execute(_KEEP, (question.key, json.dumps(question.parts), json.dumps(reply.text), usage))

        return self._thread.submit(self._run, write)

    def question(self, key: str) -> Mapping[str, str] | None:
        """The stored question as JSON by part: `model`, `params`, `schema` and `messages`."""

        def read(db: sqlite3.Connection) -> Mapping[str, str] | None:
            row = db.execute("SELECT question FROM replies WHERE key = ? LIMIT 1", (key,)).fetchone()
            return row and json.loads(row[0])

        return self._thread.submit(self._run, read).result()

    def close(self) -> None:
        if self._connection is not None:
            self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        path = self._path
        try:
            if self._connection is None:
                if path.exists():
                    _check_file(path)
                elif self._read_only:
                    raise CassetteError(
                        f"there is no cassette to replay at {path}.", 'Record it first: Cassette(path, mode="cache").'
                    )
                address = f"{path.absolute().as_uri()}?mode=ro"
                reading = self._read_only and sqlite3.connect(address, uri=True, timeout=_LOCKED_SECONDS)
                self._connection = reading or _open_to_write(path)
            return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise CassetteError(f"the cassette {path} cannot be used: {error}.", _OTHER_FILE) from error


def _check_directory(path: Path) -> None:
    """Raises `CassetteError` if no file can be created at `path`; creates nothing."""
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    what = "directory" if not parent.is_dir() else "writable" if not os.access(parent, os.W_OK | os.X_OK) else ""
    if what:
        raise CassetteError(f"the cassette {path} cannot be used: {parent} is not {what}.", _OTHER_FILE)


def _open_to_write(path: Path) -> sqlite3.Connection:
    """A connection whose commits are on disk even if the process is killed; only a power failure may cost the last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=_LOCKED_SECONDS)
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'replies'").fetchone():
        db.executescript(_TABLES)  # before there is a log, so that the file itself says what it is
    is_locked = retry_if_exception(lambda error: getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY)
    waiting = Retrying(retry=is_locked, stop=stop_after_delay(_LOCKED_SECONDS), wait=wait_fixed(0.01), reraise=True)
    waiting(db.execute, "PRAGMA journal_mode = WAL")  # SQLite does not wait for the lock of this change
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def _check_file(path: Path) -> None:
    """Rejects a file that is no cassette by its first bytes, before a connection may write to it: SQLite writes to a
    database when its last connection closes, and takes a very short file for an empty database."""
    with path.open("rb") as file:
        head = file.read(100)
    version, application = (int.from_bytes(head[start : start + 4]) for start in (60, 68))
    if head and application != _APPLICATION:
        raise CassetteError(f"the file {path} cannot be used: it is not a cassette.", _OTHER_FILE)
    if head and version != FORMAT_VERSION:
        raise CassetteError(
            f"the cassette {path} has format version {version}, and this Gavel reads {FORMAT_VERSION}.",
            "Install the version of Gavel that wrote it, or take another file.",
        )
