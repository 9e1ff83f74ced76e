"""A database with one writer thread that commits the pending writes of many requests together (group commit).

    database = Database.open("gavel_service.sqlite")        # or postgresql://user@host/name
    await database.write(lambda connection: …)              # returns once it is committed
    await database.read(lambda connection: …)

A write is a function of a connection. It may run twice (after a conflict or a lost connection), so it must only read
and write the database. A `ServiceError` is its answer: what it wrote before is committed with the others' works.
SQLite commits with `synchronous=FULL`: acknowledged writes survive a power failure, and one wait for the disk serves a
whole batch.
"""

import asyncio
import logging
import os
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from gavel.judge.service.errors import DatabaseUnavailableError, ServiceError
from gavel.judge.service.store.tables import create_tables, read_version, write_version

_LOG = logging.getLogger(__name__)
_CONFLICTS = ("40001", "40P01")
"""PostgreSQL's states of a serialization failure and a deadlock."""
_READ_ONLY = "25006"
"""PostgreSQL's state of a write to a read-only server."""
_BROKEN = "Stop the service, and restore the file from a copy, or begin with a new one."
_WRITABLE = "Make the database's file and its directory writable for the service, or name another --database."
_REMEDIES = {
    sqlite3.SQLITE_FULL: "Make room on the disk of the database's file.",
    sqlite3.SQLITE_IOERR: "Make room on the disk of the database's file, and look at the disk.",
    sqlite3.SQLITE_READONLY: _WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _WRITABLE,
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
}
"""Remedies by SQLite's primary result code."""
_WHICH = "Give the path of an SQLite file, or postgresql://user:password@host/name (GAVEL_DATABASE_URL)."


def _no_answer(error: exc.DBAPIError) -> DatabaseUnavailableError:
    remedy = _REMEDIES.get(_code(error.orig), "Try again; if it lasts, look at the database.")
    return DatabaseUnavailableError(f"the database does not answer: {_reason(error)}.", remedy)


def _code(error: BaseException | None) -> int:
    """SQLite's primary result code; 0 if there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_outage(error: exc.DBAPIError) -> bool:
    if error.connection_invalidated or isinstance(error, exc.OperationalError):
        return True
    return _REMEDIES.get(_code(error.orig)) == _BROKEN or getattr(error.orig, "sqlstate", None) == _READ_ONLY


def _is_conflict(error: Exception) -> bool:
    """Whether a transaction was aborted because of a concurrent one, and may succeed if retried."""
    return isinstance(error, exc.DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def _reason(error: Exception) -> str:
    """The driver's message, without the statement and its parameters, which may hold transcripts."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return " ".join(str(cause).split())


_READERS = 4
"""Number of concurrent read connections."""
_LOCKED_SECONDS = 30.0
_LOOK_SECONDS = 0.0003, 0.01
"""First and longest pause between checks whether another process has ended its transaction."""
_POSTGRESQL: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "tcp_user_timeout": 30_000,
    "options": "-c statement_timeout=60s -c lock_timeout=30s",
}
"""Connection options: no wait for the server is unlimited."""


def engine_of(url: sa.URL, *, writes: bool) -> sa.Engine:
    """Connections that write, or that read. Commits wait for the disk."""
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, pool_size=_READERS, connect_args=_POSTGRESQL, hide_parameters=True)
    options = {"timeout": _LOCKED_SECONDS, "check_same_thread": False}
    engine = sa.create_engine(url, connect_args=options, pool_size=_READERS, hide_parameters=True)

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # transactions begin below, not at the driver's choice
        # SQLite does not wait for the lock of the change to a write-ahead log, so this code does.
        _retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA secure_delete = ON")  # erased transcripts are overwritten
        if writes:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA synchronous = FULL")

    def begins(connection: sa.Connection) -> None:
        # SQLite itself would sleep up to 0.1 s between two polls, so that processes which write concurrently wait
        # for each other far longer than they write.
        _retry_while_busy(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN"))

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begins)
    return engine


def _retry_while_busy(work: Callable[[], object]) -> None:
    """Retries while another process holds SQLite's lock, for half a minute."""
    patience, pause = time.monotonic() + _LOCKED_SECONDS, _LOOK_SECONDS[0]
    while True:
        try:
            work()
            return
        except (sqlite3.OperationalError, exc.OperationalError) as error:
            cause = error.orig if isinstance(error, exc.OperationalError) else error
            if _code(cause) != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
        time.sleep(pause)
        pause = min(pause * 1.2, _LOOK_SECONDS[1])


_T = TypeVar("_T")
_MAX_BATCH = 256
_TRIES = 5
"""Max attempts of work that conflicts with that of other processes."""
_WRITE_SECONDS = 45.0
"""Seconds until an uncommitted write is an error: a disk may hang."""
_PROBE_SECONDS = 4.0
"""Timeout of a probe, shorter than load balancers wait for /readyz."""
_FOUND_SECONDS = 1.0
"""Seconds for which a probe's result is reused."""
Work = Callable[[sa.Connection], _T]


class _Pending(NamedTuple):
    work: Work[Any]
    future: "asyncio.Future[Any]"
    order: str


def _outcome(work: Work[Any], connection: sa.Connection) -> Any:
    """The work's result, or its refusal, which is no reason to roll the others' works back."""
    try:
        return work(connection)
    except ServiceError as refusal:
        return refusal


def _settle(outcomes: list[tuple[_Pending, Any]]) -> None:
    for pending, outcome in outcomes:
        if pending.future.done():
            continue
        if isinstance(outcome, Exception):
            pending.future.set_exception(outcome)
        else:
            pending.future.set_result(outcome)


class Database:
    """An open database, until `close`. Threads and event loops may share it."""

    def __init__(self, url: sa.URL) -> None:
        """Opens the database, and creates its tables in a new one. Raises `ServiceError`."""
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._file = Path(url.database or "").absolute() if self.is_sqlite else None
        self._write_engine = engine_of(url, writes=True)
        self._read_engine = engine_of(url, writes=False)
        try:
            if self._file is not None and not self._file.exists():
                # Readable by its owner alone: it holds transcripts. SQLite gives its log the same permissions.
                os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            with self._write_engine.begin() as connection:
                create_tables(connection)
                write_version(connection)  # fails where nothing can be written
        except (exc.SQLAlchemyError, OSError) as error:
            where, why = url.render_as_string(hide_password=True), _reason(error).rstrip("?.")
            remedy = _REMEDIES.get(_code(getattr(error, "orig", None)), _WRITABLE)
            remedy = remedy if self.is_sqlite else f"Does it run, and is all of its URL right? {_WHICH}"
            raise ServiceError(f"the database {where} cannot be used: {why}.", remedy) from error
        self._opened = self._identity()
        self._pending: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self.outages = 0
        """Number of outages so far."""
        self._probing = asyncio.Lock()
        self._found: DatabaseUnavailableError | None = None
        self._found_at = float("-inf")
        self._closed = False
        self._closing = threading.Lock()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="gavel-read")
        self._writer = threading.Thread(target=self._run, name="gavel-write", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, url: str) -> "Database":
        """The database of a URL, or the SQLite file of a path. Raises `ServiceError`."""
        return cls(database_url(url))

    @property
    def place(self) -> str:
        """The database's location, without a password."""
        return f"SQLite {self.url.database}" if self.is_sqlite else self.url.render_as_string(hide_password=True)

    def write_now(self, work: Work[_T]) -> _T:
        """The work's result, committed, in this thread. Raises as `write` does, and the work's own errors."""
        return self._run_with_retry(self._write_engine, work)

    def begin(self, work: Work[_T], order: str = "") -> "asyncio.Future[_T]":
        """Queues work for a transaction; the future of the running event loop completes once it is committed.

        A work on a row that other processes change too names the row as its `order`: all lock such rows in that order,
        which prevents deadlocks. The future raises `DatabaseUnavailableError`, and the work's own errors.
        """
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        with self._closing:
            if self._closed:
                raise DatabaseUnavailableError("the database is closed.", "Start the service again.")
            self._pending.put(_Pending(work, future, order))
        return future

    async def write(self, work: Work[_T], order: str = "", seconds: float | None = None) -> _T:
        """The work's result, once it is committed. Raises as the future of `begin` does, and
        `DatabaseUnavailableError` after 45 seconds; the work may then be committed later."""
        seconds = seconds or _WRITE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await self.begin(work, order)
        except TimeoutError:
            self.outages += 1
            raise DatabaseUnavailableError(
                f"the database has not committed a write for {seconds:g} s.", "Look at the database, and at its disk."
            ) from None

    async def read(self, work: Work[_T]) -> _T:
        """The work's result, unordered with writes. Raises as `write` does."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, work)

    async def rows(self, query: sa.Executable) -> Sequence[Any]:
        """All rows of a query. Raises as `write` does."""
        return await self.read(lambda connection: connection.execute(query).all())

    def read_now(self, work: Work[_T]) -> _T:
        """The same, in this thread."""
        return self._run_with_retry(self._read_engine, work)

    async def check(self, room: int) -> None:
        """Raises `DatabaseUnavailableError` if a read or a write fails or is slow, or an SQLite file's disk has less
        than `room` free bytes. Checks at most once a second."""
        async with self._probing:
            if time.monotonic() - self._found_at >= _FOUND_SECONDS:
                self._found = None
                try:
                    await self._probe(room)
                except DatabaseUnavailableError as error:
                    self._found = error
                self._found_at = time.monotonic()
        if self._found is not None:
            raise DatabaseUnavailableError(self._found.message, self._found.remedy)

    async def _probe(self, room: int) -> None:
        try:
            if self._file is not None and (free := shutil.disk_usage(self._file.parent).free) < room:
                raise DatabaseUnavailableError(
                    f"the disk of {self._file} has {free:,} bytes left, which is less than one request may have.",
                    "Make room on it, or set retention_days, which deletes old judgements.",
                )
        except OSError as error:
            why = f"the disk of {self._file} cannot be read: {error}."
            raise DatabaseUnavailableError(why, "Look at the disk.") from error
        await self.read(read_version)
        await self.write(write_version, seconds=_PROBE_SECONDS)

    async def truncate_log(self) -> bool:
        """Empties SQLite's write-ahead log, which holds data erased before; PostgreSQL does that itself.

        Returns False if a long read blocks it: then it must be retried.
        """

        def truncate() -> bool:
            connection = self._read_engine.raw_connection()  # outside a transaction
            try:
                is_busy, *_ = connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                return not is_busy
            finally:
                connection.close()

        return not self.is_sqlite or await asyncio.get_running_loop().run_in_executor(self._readers, truncate)

    def close(self) -> None:
        """Commits pending writes, and closes all connections."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._pending.put(None)
        self._writer.join()
        self._readers.shutdown()
        for engine in (self._write_engine, self._read_engine):
            engine.dispose()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch = [self._pending.get()]
            while len(batch) < _MAX_BATCH and not self._pending.empty():
                batch.append(self._pending.get())
            is_last = batch[-1] is None
            live = sorted((one for one in batch if one and not one.future.cancelled()), key=lambda one: one.order)
            settled = list(zip(live, self._commit(live), strict=True))
            for loop in {each.future.get_loop() for each in live}:
                if not loop.is_closed():  # an event loop is woken once per transaction
                    own = [pair for pair in settled if pair[0].future.get_loop() is loop]
                    loop.call_soon_threadsafe(_settle, own)

    def _commit(self, batch: Sequence[_Pending], tries: int = _TRIES) -> list[Any]:
        """Each work's result, or its exception; successful ones are committed."""
        work: Work[list[Any]] = lambda connection: [_outcome(each.work, connection) for each in batch]  # noqa: E731
        try:
            return self._run_with_retry(self._write_engine, work) if batch else []
        except DatabaseUnavailableError as error:
            return [error] * len(batch)
        except Exception as error:
            conflict = _is_conflict(error)
            if len(batch) == 1 and not (conflict and tries > 1):
                return [_no_answer(error) if conflict and isinstance(error, exc.DBAPIError) else error]
            # One work failed: run separately, each of the others succeeds.
            return [outcome for each in batch for outcome in self._commit([each], tries - conflict)]

    def _run_with_retry(self, engine: sa.Engine, work: Work[_T]) -> _T:
        """Runs the work in a transaction, twice if the first connection turned out to be lost."""
        if self._opened is not None and self._identity() != self._opened:
            # SQLite keeps writing to a deleted file, which no restart would find.
            self.outages += 1
            raise DatabaseUnavailableError(
                f"the database's file {self._file} was deleted or replaced while the service uses it.",
                "Put the same file back, or restart the service, which then begins with the file that is there.",
            )
        is_second = False
        while True:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except exc.DBAPIError as error:
                if not _is_outage(error) or _is_conflict(error):
                    raise
                if is_second or not error.connection_invalidated:
                    self.outages += 1
                    raise _no_answer(error) from error
            is_second = True

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return status and (status.st_dev, status.st_ino)


async def every(seconds: float, work: Callable[[], Awaitable[object]], failing: str, *, after: float = 0.0) -> None:
    """Repeats the work forever, first `after` so many seconds, with a pause after each run; logs `failing` while the
    database is unavailable."""
    await asyncio.sleep(after)
    while True:
        try:
            await work()
        except (ServiceError, exc.SQLAlchemyError, sqlite3.Error) as error:
            why = error.message if isinstance(error, ServiceError) else type(error).__name__
            _LOG.warning("%s: %s", failing, why)
        await asyncio.sleep(seconds)


def database_url(text: str) -> sa.URL:
    """The SQLAlchemy URL of a URL or of an SQLite file's path. Raises `ServiceError`."""
    if not text.strip() or text == ":memory:":
        raise ServiceError("the database has no file, so that a restart would find nothing.", _WHICH)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
        backend = url.get_backend_name()
    except (exc.ArgumentError, ValueError) as error:
        raise ServiceError("the database's URL cannot be read.", _WHICH) from error
    match backend:
        case "sqlite" if url.database and url.database != ":memory:":
            return url
        case "postgres" | "postgresql":
            return url.set(drivername="postgresql+psycopg")
        case _:
            raise ServiceError(f"{backend} is no database that the service can use.", _WHICH)
