"""Whether the database can be written, found out by writing: a full disk answers every read.

await WriteProbe(database).check(room=16 * 2**20)      raises DatabaseUnavailableError, with what to do
"""

import asyncio
import shutil
import time

import sqlalchemy as sa

from gavel.judge.service.errors import DatabaseUnavailableError
from gavel.judge.service.store.database import Database

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
