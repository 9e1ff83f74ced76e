"""A database with one writer thread, which commits the pending writes of many requests together (group commit).

    database = Database.open("gavel_service.sqlite")        # or postgresql://user@host/name
    await database.write(lambda connection: …)              # returns once it is committed
    await database.read(lambda connection: …)

A write is a function of a connection. It may run twice (when the transaction failed because of another one, or the
connection was lost), so it does nothing but read and write the database. What tasks write in one turn of their event
loop is one transaction. SQLite commits with `synchronous=FULL`: what was acknowledged survives a power cut too, and one
wait for the disk serves all writes of a batch. Writes that may be lost in a power cut (`durable=False`) do not wait.
"""

import asyncio
import os
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from gavel.judge.service.errors import DatabaseUnavailableError, ServiceError
from gavel.judge.service.store.tables import create_tables

_CONFLICTS = ("40001", "40P01")
"""PostgreSQL's states for a serialization failure and a deadlock."""
_BROKEN = "Stop the service, and restore the file from a copy, or begin with a new one."
_REMEDIES = {
    sqlite3.SQLITE_FULL: "Make room on the disk of the database's file.",
    sqlite3.SQLITE_IOERR: "Make room on the disk of the database's file, and look at the disk.",
    sqlite3.SQLITE_READONLY: "Make the database's file and its directory writable for the service.",
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
}
"""By SQLite's primary result code."""
_READ_ONLY = "25006"
"""PostgreSQL's state for a write to a server that allows reading alone."""


def no_answer(error: Exception) -> DatabaseUnavailableError:
    code = getattr(error.orig, "sqlite_errorcode", 0) if isinstance(error, exc.DBAPIError) else 0
    remedy = _REMEDIES.get(code & 0xFF, "Try again; if it lasts, look at the database.")
    return DatabaseUnavailableError(f"the database does not answer: {reason(error)}.", remedy)


def is_outage(error: exc.DBAPIError) -> bool:
    """Whether no work can succeed now."""
    if error.connection_invalidated or isinstance(error, exc.OperationalError):
        return True
    is_broken = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return is_broken or getattr(error.orig, "sqlstate", None) == _READ_ONLY


def is_conflict(error: Exception) -> bool:
    """Whether a transaction was ended for the sake of another one, and may succeed now."""
    return isinstance(error, exc.DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def reason(error: Exception) -> str:
    """The driver's own words, without the statement and its parameters, which may hold transcripts."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return " ".join(str(cause).split())


_MOUNTS = Path("/proc/self/mountinfo")
_OF_NETWORKS = {
    *("afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"),
    *("fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
}
_ELSEWHERE = "Name a file on a disk of this machine, or a PostgreSQL (GAVEL_DATABASE_URL)."


def check_place(path: Path) -> None:
    """Raises `ServiceError` where the file cannot be opened and written, or is on a network file system."""
    file = path.absolute()
    folder = file.parent
    if not folder.is_dir():
        raise ServiceError(f"the database {path} cannot be opened: its directory does not exist.", "Make it first.")
    if file.is_dir():
        raise ServiceError(f"the database {path} cannot be opened: it is a directory.", "Name a file in it.")
    for place, what in ((folder, "its directory"), (file, "it")):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK | (os.X_OK if place is folder else 0)):
            raise ServiceError(
                f"the database {path} cannot be used: {what} is read-only or not writable for user {os.geteuid()}.",
                f"Make {place} writable (SQLite also keeps its log in that directory), or name another --database.",
            )
    mounts = _MOUNTS.read_text(errors="replace") if _MOUNTS.exists() else ""
    kind = file_system(file.resolve(), mounts)
    if kind in _OF_NETWORKS:
        raise ServiceError(
            f"the database {path} is on a network file system ({kind}), which SQLite's log does not work on.",
            _ELSEWHERE,
        )


def file_system(file: Path, mounts: str) -> str:
    """The kind of the file system that a path is on, by the text of Linux's mountinfo; empty where it does not say."""
    best, found = -1, ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after:
            continue
        point = Path(fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace"))
        if file.is_relative_to(point) and len(point.parts) >= best:  # of two on one point the later one is seen
            best, found = len(point.parts), after.split()[0]
    return found


READERS = 4
"""Connections that read at once."""
WRITE = "BEGIN IMMEDIATE"
"""The statement that begins a transaction which writes, on SQLite."""
_LOCKED_SECONDS = 30.0
_LOOK_SECONDS = 0.0003, 0.01
"""First and longest pause between looks whether another process has ended its transaction."""
_POSTGRESQL: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "tcp_user_timeout": 30_000,
    "options": "-c statement_timeout=60s -c lock_timeout=30s",
}
"""No wait for the server lasts for ever."""
_NO_WAIT = " -c synchronous_commit=off"


def engine_of(url: sa.URL, begin: str, *, durable: bool = True) -> sa.Engine:
    """Connections of one kind. `begin`: the statement that begins a transaction on SQLite. Commits of a `durable` one
    wait for the disk."""
    if url.get_backend_name() != "sqlite":
        options = {**_POSTGRESQL, "options": _POSTGRESQL["options"] + ("" if durable else _NO_WAIT)}
        return sa.create_engine(url, pool_size=READERS, connect_args=options, hide_parameters=True)
    engine = sa.create_engine(
        url,
        connect_args={"timeout": _LOCKED_SECONDS, "check_same_thread": False},
        pool_size=READERS,
        hide_parameters=True,
    )

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks
        _use_log(connection)
        if begin == WRITE:
            connection.execute("PRAGMA busy_timeout = 0")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA secure_delete = ON")  # erased transcripts are overwritten

    def begins(connection: sa.Connection) -> None:
        if begin == WRITE:
            _begin_to_write(connection)
        else:
            connection.exec_driver_sql(begin)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begins)
    return engine


def _begin_to_write(connection: sa.Connection) -> None:
    """Waits for SQLite's one writer, which is done in milliseconds: SQLite itself would sleep up to 100 of them between
    two looks, so that processes which write at the same time wait for each other far longer than they write."""
    patience, pause = time.monotonic() + _LOCKED_SECONDS, _LOOK_SECONDS[0]
    while True:
        try:
            connection.exec_driver_sql(WRITE)
            return
        except exc.OperationalError as error:
            if not _is_busy(error.orig) or time.monotonic() > patience:
                raise
        time.sleep(pause)
        pause = min(pause * 1.2, _LOOK_SECONDS[1])


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _use_log(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for the lock that changing to a write-ahead log takes, so this does."""
    patience = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > patience:
                raise
            time.sleep(0.01)


_T = TypeVar("_T")
_MAX_BATCH = 256
_TRIES = 5
"""Of a work that conflicts with those of other processes."""
Work = Callable[[sa.Connection], _T]


@dataclass(frozen=True, slots=True)
class _Pending(Generic[_T]):
    work: Work[_T]
    future: "Future[_T] | asyncio.Future[_T]"
    loop: asyncio.AbstractEventLoop | None
    """Of an asyncio future."""
    order: str = ""
    is_durable: bool = True

    @property
    def is_wanted(self) -> bool:
        return not self.future.cancelled() if self.loop else self.future.set_running_or_notify_cancel()  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class _Done(Generic[_T]):
    pending: _Pending[_T]
    result: _T | None = None
    error: Exception | None = None

    def settle(self) -> None:
        """Tells whoever waits; in the thread of the event loop, for one of its futures."""
        future = self.pending.future
        if self.pending.loop and future.done():
            return
        if self.error is None:
            future.set_result(self.result)  # type: ignore[arg-type]
        else:
            future.set_exception(self.error)


class Database:
    """Open until `close`. Threads and event loops may share it."""

    def __init__(self, url: sa.URL) -> None:
        """Opens the database, and makes its tables in a new one. Raises `ServiceError`."""
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            check_place(path := Path(url.database or ""))
            _make_private(path, url)
        self._write_engine = engine_of(url, WRITE)
        self._hasty_engine = engine_of(url, WRITE, durable=False)
        """For writes that need not survive a power cut."""
        self._read_engine = engine_of(url, "BEGIN")
        try:
            with self._write_engine.begin() as connection:
                create_tables(connection)
        except (exc.SQLAlchemyError, OSError) as error:
            raise _unusable(url, error) from error
        self._file = _SqliteFile(url) if self.is_sqlite else None
        self._pending: queue.SimpleQueue[list[_Pending[Any]] | None] = queue.SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Pending[Any]]] = {}
        """What tasks have written in this turn of their event loop."""
        self.outages = 0
        """How often the database did not answer so far."""
        self._closed = False
        self._closing = threading.Lock()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="gavel-read")
        self._writer = threading.Thread(target=self._run, name="gavel-write", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, url: str) -> "Database":
        """The database of a URL, or the SQLite file of a path. Raises `ServiceError`."""
        return cls(database_url(url))

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        return f"SQLite {self.url.database}" if self.is_sqlite else self.url.render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        """SQLite's file."""
        return self._file.path if self._file is not None else None

    def submit(self, work: Work[_T]) -> "Future[_T]":
        """Runs the work in a transaction soon; the future is done once that is committed.

        The future raises `DatabaseUnavailableError`, and what the work raises.
        """
        future: Future[_T] = Future()
        with self._while_open():
            self._pending.put([_Pending(work, future, None)])
        return future

    def begin(self, work: Work[_T], order: str = "", *, durable: bool = True) -> "asyncio.Future[_T]":
        """The same for the running event loop, which one call wakes for all futures of a transaction.

        Works on a row that other processes change too name it as their `order`: all take such rows in that order, so
        that no two transactions wait for each other. What is not `durable` survives the end of the process, and no
        power cut.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        with self._while_open():
            gathered = self._gathered.setdefault(loop, [])
            gathered.append(_Pending(work, future, loop, order, durable))
        if len(gathered) == 1:
            loop.call_soon(self._hand_over, loop)
        return future

    async def write(self, work: Work[_T], order: str = "", *, durable: bool = True) -> _T:
        """What the work returns, once it is committed. Options as in `begin`; raises as the future of `submit` does."""
        return await self.begin(work, order, durable=durable)

    @contextmanager
    def _while_open(self) -> Generator[None]:
        """Keeps the database open during the block."""
        with self._closing:
            if self._closed:
                raise DatabaseUnavailableError("the database is closed.", "Start the service again.")
            yield

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the writer what was gathered."""
        with self._closing:
            if gathered := self._gathered.pop(loop, None):
                self._pending.put(gathered)

    async def read(self, work: Work[_T]) -> _T:
        """What the work returns, outside the order of writes. Raises as `write` does."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_now, work)

    def read_now(self, work: Work[_T]) -> _T:
        """The same in this thread."""
        return self._retried(self._read_engine, lambda connection: work(connection))

    async def truncate_log(self) -> bool:
        """Empties SQLite's write-ahead log, which holds what was erased until then; PostgreSQL sees to its own.

        False when somebody reads in it for long: it is to be tried again.
        """
        if not self.is_sqlite:
            return True
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._truncate_log)

    def _truncate_log(self) -> bool:
        connection = self._read_engine.raw_connection()  # outside a transaction
        try:
            is_busy, *_ = connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not is_busy
        finally:
            connection.close()

    def close(self) -> None:
        """Commits what is pending, and closes all connections."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            for gathered in self._gathered.values():
                self._pending.put(gathered)
            self._gathered.clear()
            self._pending.put(None)
        self._writer.join()
        self._readers.shutdown()
        for engine in (self._write_engine, self._hasty_engine, self._read_engine):
            engine.dispose()

    def _run(self) -> None:
        while True:
            batch, is_last = self._next_batch()
            live = sorted((each for each in batch if each.is_wanted), key=lambda each: each.order)
            if live:
                _settle(self._committed(live))
            if is_last:
                return

    def _next_batch(self) -> tuple[list[_Pending[Any]], bool]:
        """What waits, in order, at least one; and whether nothing comes after it."""
        batch: list[_Pending[Any]] = []
        while len(batch) < _MAX_BATCH:
            try:
                each = self._pending.get(block=not batch)
            except queue.Empty:
                break
            if each is None:
                return batch, True
            batch += each
        return batch, False

    def _committed(self, batch: Sequence[_Pending[Any]], tries: int = _TRIES) -> list[_Done[Any]]:
        """What became of each work; those that did not fail are committed."""
        try:
            engine = self._write_engine if any(each.is_durable for each in batch) else self._hasty_engine
            results = self._retried(engine, lambda connection: [each.work(connection) for each in batch])
        except DatabaseUnavailableError as error:
            return [_Done(each, error=error) for each in batch]
        except Exception as error:
            conflict = is_conflict(error)
            if len(batch) == 1 and conflict and tries == 1:
                return [_Done(batch[0], error=no_answer(error))]
            if len(batch) == 1 and not conflict:
                return [_Done(batch[0], error=error)]
            # One work failed: alone, each of the others succeeds.
            return [done for each in batch for done in self._committed([each], tries - conflict)]
        return [_Done(each, result) for each, result in zip(batch, results, strict=True)]

    def _retried(self, engine: sa.Engine, work: Work[_T]) -> _T:
        """Runs the work in a transaction, twice where the first connection turned out to be lost."""
        if self._file is not None and not self._file.is_in_place:
            self.outages += 1
            raise DatabaseUnavailableError(
                f"the database's file {self._file.path} was deleted or replaced while the service uses it.",
                "Put the same file back, or restart the service, which then begins with the file that is there.",
            )
        try:
            return _in_transaction(engine, work)
        except exc.DBAPIError as error:
            if not is_outage(error):
                raise
            if is_conflict(error):
                raise
            first = error
        if first.connection_invalidated:
            try:
                return _in_transaction(engine, work)
            except exc.OperationalError as error:
                first = error
        self.outages += 1
        raise no_answer(first) from first


class _SqliteFile:
    """The file that was opened. SQLite goes on writing to one that was deleted, and no restart would find that."""

    def __init__(self, url: sa.URL) -> None:
        self.path = Path(url.database or "").absolute()
        self._opened = self._identity()

    @property
    def is_in_place(self) -> bool:
        return self._opened is None or self._identity() == self._opened

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _settle(done: Sequence[_Done[Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop | None, list[_Done[Any]]] = {}
    for each in done:
        by_loop.setdefault(each.pending.loop, []).append(each)
    for loop, of_loop in by_loop.items():
        if loop is None:
            _settle_all(of_loop)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_settle_all, of_loop)


def _settle_all(done: Sequence[_Done[Any]]) -> None:
    for each in done:
        each.settle()


def database_url(text: str) -> sa.URL:
    """The SQLAlchemy URL of a URL or of a path to an SQLite file. Raises `ServiceError`."""
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


_WHICH = "Give the path of an SQLite file, or postgresql://user:password@host/name (GAVEL_DATABASE_URL)."


def _make_private(path: Path, url: sa.URL) -> None:
    """Makes a new file for its owner alone: it holds transcripts. SQLite gives its log the same permissions."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise _unusable(url, error) from error


def _in_transaction(engine: sa.Engine, work: Work[_T]) -> _T:
    with engine.begin() as connection:
        return work(connection)


def _unusable(url: sa.URL, error: Exception) -> ServiceError:
    where = url.render_as_string(hide_password=True)
    remedy = _WHICH if url.get_backend_name() == "sqlite" else f"Does it run, and is all of its URL right? {_WHICH}"
    return ServiceError(f"the database {where} cannot be used: {reason(error).rstrip('?.')}.", remedy)


_FOUND_SECONDS = 1.0
"""That what was found is believed."""
_WAIT_SECONDS = 4.0
"""Less than probes wait for an answer."""
_LARGEST = 2**31 - 1
_IS_READ_ONLY = sa.text("SELECT current_setting('transaction_read_only')")
_MESSAGE = sa.text("SELECT pg_logical_emit_message(true, 'gavel', 'ready')")
"""A record of nothing in PostgreSQL's log, which the commit waits for."""


class WriteProbe:
    """Writes to one database, at most once a second however often it is asked. For one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._found: DatabaseUnavailableError | None = None
        self._found_until = 0.0

    async def check(self, room: int) -> None:
        """Raises `DatabaseUnavailableError` when a write fails or takes long, or an SQLite file's disk has not `room`
        bytes left."""
        async with self._lock:
            if time.monotonic() >= self._found_until:
                self._found = await self._problem(room)
                self._found_until = time.monotonic() + _FOUND_SECONDS
        if self._found is not None:
            raise DatabaseUnavailableError(self._found.message, self._found.remedy)

    async def _problem(self, room: int) -> DatabaseUnavailableError | None:
        if (path := self._database.file) is not None:
            free = await asyncio.to_thread(_free_bytes, str(path.parent))
            if free is not None and free < room:
                return DatabaseUnavailableError(
                    f"the disk of {path} has {free:,} bytes left, which is less than one request may have.",
                    "Make room on it, or set retention_days, which deletes old judgements.",
                )
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                is_read_only = await self._database.write(_write)
        except DatabaseUnavailableError as error:
            return error
        except TimeoutError:
            return DatabaseUnavailableError(
                f"the database has not committed a write for {_WAIT_SECONDS:g} s.", "Look at the database."
            )
        if is_read_only:
            return DatabaseUnavailableError(
                "the database is read-only.", "Name its primary server, or make room on its disk."
            )
        return None


def _write(connection: sa.Connection) -> bool:
    """Changes a number of SQLite's that nothing else uses, or PostgreSQL's log; whether only reading is allowed."""
    if connection.dialect.name == "sqlite":
        number = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        connection.exec_driver_sql(f"PRAGMA user_version = {(number + 1) % _LARGEST}")
        return False
    if connection.execute(_IS_READ_ONLY).scalar_one() == "on":
        return True
    connection.execute(_MESSAGE).close()
    return False


def _free_bytes(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
