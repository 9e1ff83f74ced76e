"""The database: its one writer, where its file may be, and what it says when it cannot be written."""

import asyncio
import resource
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import KeyStore
from gavel.judge.service.errors import DatabaseUnavailableError, ServiceError
from gavel.judge.service.schemas import KeyScope
from gavel.judge.service.store import database as database_module
from gavel.judge.service.store.database import Database, database_url
from gavel.judge.service.store.tables import VERSION, processes
from gavel.judge.service.store.tables import keys as key_rows
from tests.judge.service.in_process import group
from tests.judge.service.postgresql import Cluster
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow

INSERT = sa.insert(processes)
SPEND = sa.update(key_rows).values(spent_usd=key_rows.c.spent_usd + 1)


def row(key: str) -> dict[str, object]:
    return {"owner": key, "clock": "a boot", "beats": 1}


def keys(database: Database) -> list[str]:
    query = sa.select(processes.c.owner)
    return sorted(database.read_now(lambda connection: connection.execute(query).scalars().all()))


async def test_writes_of_many_tasks_are_committed_when_they_return(tmp_path: Path):
    async def write(number: int) -> None:
        await database.write(lambda connection: connection.execute(INSERT, row(f"{number:03}")))
        with sqlite3.connect(tmp_path / "service.sqlite") as other:
            assert other.execute("SELECT count(*) FROM processes WHERE owner = ?", (f"{number:03}",)).fetchone() == (1,)

    with closing(Database.open(str(tmp_path / "service.sqlite"))) as database:
        await asyncio.gather(*map(write, range(100)))
        assert len(keys(database)) == 100


async def test_a_work_that_fails_costs_itself_alone(database: Database):
    futures = [
        database.begin(lambda connection, key=key: connection.execute(INSERT, row(key))) for key in ("a", "b", "a", "c")
    ]
    done = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(one, IntegrityError) for one in done] == [False, False, True, False]
    assert keys(database) == ["a", "b", "c"]


async def test_what_is_pending_when_it_closes_is_committed(tmp_path: Path):
    with closing(Database.open(str(tmp_path / "service.sqlite"))) as database:
        futures = [database.begin(lambda connection, n=n: connection.execute(INSERT, row(str(n)))) for n in range(50)]
    await asyncio.gather(*futures)
    with pytest.raises(DatabaseUnavailableError):
        database.begin(lambda connection: None)


async def test_a_commit_waits_for_the_disk(database: Database):
    def waits(connection: sa.Connection) -> bool:
        if connection.dialect.name == "sqlite":
            return connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        return connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"

    assert await database.write(waits)


def test_many_may_open_a_new_database_at_once(database_url: str):
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(lambda _: Database.open(database_url), range(6)))
    for number, database in enumerate(opened):
        database.write_now(lambda connection, n=number: connection.execute(INSERT, row(str(n))))
    assert keys(opened[0]) == list("012345")
    for database in opened:
        database.close()


@pytest.mark.parametrize("text", ["mysql://host/name", "sqlite://", "redis://x", ":memory:", "", " "])
def test_other_databases_are_refused_with_what_to_give(text: str):
    with pytest.raises(ServiceError, match="postgresql://user"):
        database_url(text)


@pytest.mark.postgres
async def test_transactions_that_wait_for_each_other_both_succeed(postgresql: Cluster):
    both_hold_one = threading.Barrier(2, timeout=HANG_SECONDS)

    def spend(mine: str, other: str) -> Callable[[sa.Connection], None]:
        tries: list[int] = []

        def work(connection: sa.Connection) -> None:
            connection.execute(SPEND.where(key_rows.c.id == mine))
            if not tries:
                tries.append(1)
                both_hold_one.wait()
            connection.execute(SPEND.where(key_rows.c.id == other))

        return work

    url = postgresql.database()
    with closing(Database.open(url)) as one, closing(Database.open(url)) as other:
        ids = [KeyStore(one).create(name, KeyScope())[1].id for name in "ab"]
        await asyncio.gather(one.write(spend(*ids)), other.write(spend(*ids[::-1])))
        assert [key.spent_usd for key in KeyStore(one).all_now()] == [2.0, 2.0]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_is_taken_away_is_written_to_no_more_until_it_is_back(how: str, tmp_path: Path):
    path, aside = tmp_path / "service.sqlite", tmp_path / "aside.sqlite"
    with closing(Database.open(str(path))) as database:
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


async def test_a_write_that_hangs_is_an_error_after_a_while(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_module, "_WRITE_SECONDS", 0.1)
    disk = threading.Event()
    with pytest.raises(DatabaseUnavailableError):
        await database.write(lambda connection: disk.wait(HANG_SECONDS))
    disk.set()
    monkeypatch.undo()
    await database.write(lambda connection: connection.execute(INSERT, row("later")).close())
    assert keys(database) == ["later"]


@pytest.mark.parametrize("version", [None, VERSION - 1, VERSION + 1])
def test_tables_of_another_version_are_refused_and_left_as_they_are(version: int | None, database_url: str):
    change = "DROP TABLE gavel_schema" if version is None else f"UPDATE gavel_schema SET version = {version}"
    database = Database.open(database_url)
    database.write_now(lambda connection: connection.execute(INSERT, row("kept")).close())
    database.write_now(lambda connection: connection.exec_driver_sql(change).close())
    with pytest.raises(ServiceError) as refused:
        Database.open(database_url)
    assert refused.value.remedy
    assert keys(database) == ["kept"]
    database.close()


def test_a_place_that_does_not_do_is_refused_with_what_to_use(tmp_path: Path):
    notes = tmp_path / "notes.txt"
    notes.write_text("no database " * 100)
    for path in (tmp_path, tmp_path / "nowhere" / "service.sqlite", notes):
        with pytest.raises(ServiceError) as refused:
            Database.open(str(path))
        assert str(path) in refused.value.message
        assert refused.value.remedy
    assert list(tmp_path.iterdir()) == [notes]
    assert notes.read_text() == "no database " * 100


def test_a_damaged_file_is_an_outage_with_what_to_do(tmp_path: Path):
    path = tmp_path / "service.sqlite"
    Database.open(str(path)).close()
    size = path.stat().st_size
    with closing(Database.open(str(path))) as database:
        with path.open("r+b") as file:
            file.write(b"\xff" * size)
        with pytest.raises(DatabaseUnavailableError) as refused:
            keys(database)
    assert "copy" in refused.value.remedy


JUDGE = JudgeConfig(models="stand-in", rubric="- ends with a message")
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
AWAY = (503, "urn:gavel:problem:database-unavailable")


async def test_a_file_that_cannot_grow_makes_a_service_that_is_not_ready_until_it_can(tmp_path: Path):
    async def until(status: int) -> None:
        def is_so() -> bool:
            return httpx.get(f"{service.url}/readyz", timeout=HANG_SECONDS).status_code == status

        await asyncio.to_thread(wait_until, is_so)

    config = ServiceConfig(port=0, database=str(tmp_path / "service.sqlite"), judge=JUDGE)
    async with served(config) as service, httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
        assert (await client.get("/readyz")).text == "ok"
        assert service.process.pid is not None
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
        await until(503)
        refused = (await client.get("/readyz")).json()
        assert (refused["status"], refused["type"], "room" in refused["remedy"]) == (*AWAY, True)
        asked = await client.post("/v1/score", json=group("yes", ""))
        assert (asked.status_code, asked.json()["type"]) == AWAY
        assert (await client.get("/healthz")).text == "ok"
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
        await until(200)
        assert (await client.post("/v1/score", json=group("yes", ""))).json()["scores"] == [1.0, 0.0]
