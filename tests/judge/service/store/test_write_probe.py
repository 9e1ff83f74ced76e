"""Whether the service says that it can be used, while its database can be read and not be written."""

import asyncio
import resource
from pathlib import Path

import httpx
import psycopg
import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.errors import DatabaseUnavailableError
from gavel.judge.service.store.database import Database, WriteProbe
from tests.judge.service.in_process import group
from tests.judge.service.postgresql import Cluster
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
JUDGE = JudgeConfig(models="stand-in", rubric="- ends with a message")
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


async def until(client: httpx.AsyncClient, status: int) -> httpx.Response:
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            answer = await client.get("/readyz")
            if answer.status_code == status:
                return answer
            await asyncio.sleep(0.1)


async def test_a_file_that_cannot_grow_makes_a_service_that_is_not_ready_until_it_can(tmp_path: Path):
    config = ServiceConfig(port=0, database=str(tmp_path / "service.sqlite"), judge=JUDGE)
    async with served(config) as service, httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
        assert (await client.get("/readyz")).text == "ok"
        assert service.process.pid is not None
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
        refused = (await until(client, 503)).json()
        assert refused["type"] == "urn:gavel:problem:database-unavailable"
        assert "room on the disk" in refused["remedy"]
        asked = await client.post("/v1/score", json=group("yes", ""))
        assert (asked.status_code, asked.json()["type"]) == (503, "urn:gavel:problem:database-unavailable")
        assert (await client.get("/healthz")).text == "ok"
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
        await until(client, 200)
        assert (await client.post("/v1/score", json=group("yes", ""))).json()["scores"] == [1.0, 0.0]


async def test_a_disk_without_room_for_a_request_makes_a_service_that_is_not_ready(tmp_path: Path):
    limits = ServiceLimits(body_bytes=2**62)
    config = ServiceConfig(port=0, database=str(tmp_path / "service.sqlite"), judge=JUDGE, limits=limits)
    async with served(config) as service, httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
        refused = await client.get("/readyz")
    assert refused.status_code == 503
    assert "bytes left" in refused.json()["detail"]
    assert "Make room" in refused.json()["remedy"]


async def test_what_is_ready_is_not_written_to_for_every_question(tmp_path: Path):
    database = Database.open(str(tmp_path / "service.sqlite"))
    written: list[int] = []
    try:
        probe = WriteProbe(database)
        await asyncio.gather(*(probe.check(0) for _ in range(50)))
        written.append(database.read_now(lambda c: c.exec_driver_sql("PRAGMA user_version").scalar_one()))
    finally:
        database.close()
    assert 1 <= written[0] < 25


def test_a_damaged_file_is_an_outage_with_what_to_do(tmp_path: Path):
    path = tmp_path / "service.sqlite"
    Database.open(str(path)).close()
    whole = path.read_bytes()
    database = Database.open(str(path))
    try:
        with path.open("r+b") as file:
            file.write(b"\xff" * len(whole))
        with pytest.raises(DatabaseUnavailableError) as refused:
            database.read_now(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM keys").scalar_one())
    finally:
        database.close()
    assert "copy" in refused.value.remedy


@pytest.mark.postgres
async def test_a_server_that_allows_only_reading_makes_a_service_that_is_not_ready(postgresql: Cluster):
    url = postgresql.database()
    name = url.rpartition("/")[2]
    config = ServiceConfig(port=0, database=url, judge=JUDGE)

    def set_read_only(value: str) -> None:
        with psycopg.connect(postgresql.url("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}".encode())
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(end, (name,))

    async with served(config) as service, httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
        assert (await client.get("/readyz")).text == "ok"
        await asyncio.to_thread(set_read_only, "on")
        refused = (await until(client, 503)).json()
        asked = await client.post("/v1/score", json=group("yes", ""))
        assert (asked.status_code, asked.json()["type"]) == (503, "urn:gavel:problem:database-unavailable")
        await asyncio.to_thread(set_read_only, "off")
        await until(client, 200)
        assert (await client.post("/v1/score", json=group("yes", ""))).json()["scores"] == [1.0, 0.0]
    assert refused["remedy"]
