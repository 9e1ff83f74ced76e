"""Waiting for SQLite's one writer."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from gavel.judge.service.store import database
from gavel.judge.service.store.database import WRITE, engine_of
from tests.limits import HANG_SECONDS


@contextmanager
def writer(path: Path) -> Iterator[sa.Engine]:
    engine = engine_of(sa.URL.create("sqlite", database=str(path)), WRITE)
    try:
        yield engine
    finally:
        engine.dispose()


def insert(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO number VALUES (1)").close()


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """A file with a table, which another connection is writing to."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE number (one INTEGER)")
        other.execute("BEGIN IMMEDIATE")
        yield other


def test_a_write_waits_for_the_writer_before_it_and_is_committed_then(tmp_path: Path) -> None:
    with writer(tmp_path / "file") as engine, locked(tmp_path / "file") as other:
        writing = threading.Thread(target=insert, args=(engine,))
        writing.start()
        writing.join(0.2)
        assert writing.is_alive()
        other.execute("COMMIT")
        writing.join(HANG_SECONDS)
        assert other.execute("SELECT count(*) FROM number").fetchone() == (1,)


def test_a_writer_that_never_ends_is_an_error_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LOCKED_SECONDS", 0.1)
    with writer(tmp_path / "file") as engine, locked(tmp_path / "file") as other:
        with pytest.raises(OperationalError, match="locked"):
            insert(engine)
        other.execute("COMMIT")
        insert(engine)
        assert other.execute("SELECT count(*) FROM number").fetchone() == (1,)
