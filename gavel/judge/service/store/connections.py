"""How the service connects to SQLite and PostgreSQL: what is waited for, how long, and what survives a power cut."""

import sqlite3
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

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
