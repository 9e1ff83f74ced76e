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
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from gavel.judge.service.errors import DatabaseUnavailableError, ServiceError
from gavel.judge.service.store.connections import READERS, WRITE, engine_of
from gavel.judge.service.store.migrate import migrate
from gavel.judge.service.store.outages import is_conflict, is_outage, no_answer, reason
from gavel.judge.service.store.sqlite_place import check_place

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
        """Opens the database, and brings its tables up to date. Raises `ServiceError`."""
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            check_place(Path(url.database or ""))
        self._write_engine = engine_of(url, WRITE)
        self._hasty_engine = engine_of(url, WRITE, durable=False)
        """For writes that need not survive a power cut."""
        self._read_engine = engine_of(url, "BEGIN")
        try:
            with self._write_engine.begin() as connection:
                migrate(connection)
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


def _in_transaction(engine: sa.Engine, work: Work[_T]) -> _T:
    with engine.begin() as connection:
        return work(connection)


def _unusable(url: sa.URL, error: Exception) -> ServiceError:
    where = url.render_as_string(hide_password=True)
    remedy = _WHICH if url.get_backend_name() == "sqlite" else f"Does it run, and is all of its URL right? {_WHICH}"
    return ServiceError(f"the database {where} cannot be used: {reason(error).rstrip('?.')}.", remedy)
