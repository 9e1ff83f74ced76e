"""The writer thread and its group commit, over a real SQLite file."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gavel.judge.service.errors import DatabaseUnavailableError, ServiceError
from gavel.judge.service.schemas.records import KeyScope
from gavel.judge.service.store.database import Database, database_url
from gavel.judge.service.store.key_store import KeyStore
from gavel.judge.service.store.tables import claims
from gavel.judge.service.store.tables import keys as key_rows
from tests.judge.service.postgresql import Cluster
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

INSERT = sa.insert(claims)
SPEND = sa.update(key_rows).values(spent_usd=key_rows.c.spent_usd + 1)


def row(key: str) -> dict[str, object]:
    return {"key": key, "holder": "me", "renewed_at": 0.0}


def keys(database: Database) -> list[str]:
    return sorted(database.read_now(lambda connection: connection.execute(sa.select(claims.c.key)).scalars().all()))


@pytest.fixture
def database(database_url: str):
    opened = Database.open(database_url)
    yield opened
    opened.close()


async def test_writes_of_many_tasks_are_committed_when_they_return(tmp_path: Path):
    database = Database.open(str(tmp_path / "service.sqlite"))

    async def write(number: int) -> None:
        await database.write(lambda connection: connection.execute(INSERT, row(f"{number:03}")))
        with sqlite3.connect(tmp_path / "service.sqlite") as other:
            assert other.execute("SELECT count(*) FROM claims WHERE key = ?", (f"{number:03}",)).fetchone() == (1,)

    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(write(number))
    assert len(keys(database)) == 100
    database.close()


async def test_a_work_that_fails_costs_itself_alone(database: Database):
    futures = [
        database.submit(lambda connection, key=key: connection.execute(INSERT, row(key)))
        for key in ("a", "b", "a", "c")
    ]
    done = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    assert [isinstance(one, IntegrityError) for one in done] == [False, False, True, False]
    assert keys(database) == ["a", "b", "c"]


async def test_what_is_pending_when_it_closes_is_committed(tmp_path: Path):
    database = Database.open(str(tmp_path / "service.sqlite"))
    futures = [database.submit(lambda connection, n=n: connection.execute(INSERT, row(str(n)))) for n in range(50)]
    database.close()
    assert all(future.done() and not future.exception() for future in futures)
    with pytest.raises(DatabaseUnavailableError):
        database.submit(lambda connection: None)


async def test_what_tasks_write_in_one_turn_of_the_loop_is_one_transaction(database: Database):
    transactions: list[sa.Connection] = []
    one, other = (database.begin(transactions.append) for _ in range(2))
    await asyncio.gather(one, other)
    await database.write(transactions.append)
    assert transactions[0] is transactions[1] is not transactions[2]


async def test_what_was_written_in_the_turn_that_closes_the_database_is_committed(tmp_path: Path):
    database = Database.open(str(tmp_path / "service.sqlite"))
    future = database.begin(lambda connection: connection.execute(INSERT, row("last")).close())
    database.close()
    await future
    with pytest.raises(DatabaseUnavailableError):
        database.begin(lambda connection: None)
    reopened = Database.open(str(tmp_path / "service.sqlite"))
    assert keys(reopened) == ["last"]
    reopened.close()


@pytest.mark.parametrize("together", [[True], [False], [False, True], [False, False]])
async def test_a_commit_waits_for_the_disk_unless_no_write_is_to_be_durable(together: list[bool], database: Database):
    def waits(connection: sa.Connection) -> bool:
        if connection.dialect.name == "sqlite":
            return connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        return connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"

    for durable in (True, False):  # whatever came before
        await database.write(lambda connection: None, durable=durable)
        waited = await asyncio.gather(*(database.begin(waits, durable=each) for each in together))
        assert set(waited) == {any(together)}


async def test_a_cancelled_write_that_has_not_begun_is_not_made(database: Database):
    blocked = database.submit(lambda connection: connection.exec_driver_sql("SELECT 1"))
    future = database.submit(lambda connection: connection.execute(INSERT, row("never")))
    cancelled = future.cancel()
    await asyncio.wrap_future(blocked)
    await database.write(lambda connection: None)
    assert keys(database) == ([] if cancelled else ["never"])


def test_opening_again_keeps_what_is_there(tmp_path: Path):
    for expected in (["a"], ["a", "b"]):
        database = Database.open(str(tmp_path / "service.sqlite"))
        database.submit(lambda connection, key=expected[-1]: connection.execute(INSERT, row(key))).result()
        assert keys(database) == expected
        database.close()


def test_many_may_open_a_new_database_at_once(database_url: str):
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(lambda _: Database.open(database_url), range(6)))
    for number, database in enumerate(opened):
        database.submit(lambda connection, n=number: connection.execute(INSERT, row(str(n)))).result()
    assert keys(opened[0]) == list("012345")
    for database in opened:
        database.close()


@pytest.mark.parametrize("text", ["mysql://host/name", "sqlite://", "redis://x", ":memory:", "", " "])
def test_other_databases_are_refused_with_what_to_give(text: str):
    with pytest.raises(ServiceError, match="postgresql://user"):
        database_url(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("a/b.sqlite", "sqlite:///a/b.sqlite"),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ("postgresql://me:secret@host:5433/name", "postgresql+psycopg://me:***@host:5433/name"),
        ("postgres://host/name", "postgresql+psycopg://host/name"),
    ],
)
def test_a_path_or_a_url_names_a_database(text: str, url: str):
    assert database_url(text).render_as_string() == url


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    with pytest.raises(ServiceError, match="cannot be used"):
        Database.open(str(path))
    assert path.read_text() == "no database " * 100


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(ServiceError, match="directory does not exist"):
        Database.open(str(tmp_path / "nowhere" / "service.sqlite"))


@pytest.mark.postgres
async def test_transactions_that_wait_for_each_other_both_succeed(postgresql: Cluster):
    url = postgresql.database()
    databases = [Database.open(url), Database.open(url)]
    both_hold_one = threading.Barrier(2, timeout=HANG_SECONDS)
    ids = [KeyStore(databases[0]).create(name, KeyScope())[1].id for name in "ab"]

    def spend(mine: str, other: str) -> Callable[[sa.Connection], None]:
        tries: list[int] = []

        def work(connection: sa.Connection) -> None:
            connection.execute(SPEND.where(key_rows.c.id == mine))
            if not tries:
                tries.append(1)
                both_hold_one.wait()
            connection.execute(SPEND.where(key_rows.c.id == other))

        return work

    try:
        orders = (ids, ids[::-1])
        await asyncio.gather(*(one.write(spend(*order)) for one, order in zip(databases, orders, strict=True)))
        assert [key.spent_usd for key in KeyStore(databases[0]).all_now()] == [2.0, 2.0]
    finally:
        for one in databases:
            one.close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_is_taken_away_is_written_to_no_more_until_it_is_back(how: str, tmp_path: Path):
    path, aside = tmp_path / "service.sqlite", tmp_path / "aside.sqlite"
    database = Database.open(str(path))
    try:
        await database.write(lambda connection: connection.execute(INSERT, row("before")).close())
        path.rename(aside)
        if how == "replaced":
            path.write_bytes(b"")
        with pytest.raises(DatabaseUnavailableError, match="was deleted or replaced"):
            await database.write(lambda connection: connection.execute(INSERT, row("lost")).close())
        with pytest.raises(DatabaseUnavailableError, match="restart"):
            keys(database)
        aside.rename(path)
        assert keys(database) == ["before"]
        assert database.outages == 2
    finally:
        database.close()
