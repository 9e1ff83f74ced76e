"""The whole service as a process: killed under load it loses nothing, and pays for nothing twice."""

import asyncio
import json
import random
import socket
import sqlite3
from pathlib import Path

import httpx
import pytest

from gavel.judge.service.config import ServiceLimits
from tests.endpoint import Endpoint
from tests.judge.service.in_process import config_of, messages
from tests.judge.service.processes import Served, served
from tests.judge.service.stub import Stub, body, worths
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
CONCURRENCY = 6
AT_ONCE = 8
CALLS = 2 * AT_ONCE
"""Of the groups that are judged at once."""
GROUPS = 24
KILLS = 3


async def test_killed_under_load_it_loses_nothing_and_asks_nothing_twice(tmp_path: Path, endpoint: Endpoint):
    stub = Stub(0.05)
    endpoint.script = [stub]
    judge = {"concurrency": CONCURRENCY}
    settings = config_of(tmp_path, endpoint, judge, port=0, limits=ServiceLimits(concurrent_groups=AT_ONCE))
    chance = random.Random(7)
    answered: dict[str, list[float]] = {}
    accepted: set[str] = set()
    place = {"url": ""}

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        """Asks until it is answered, as a client with retries does."""
        wait = number % 3 > 0
        query, headers = "" if wait else "?wait=false", {"Idempotency-Key": f"group {number}"}
        while True:
            try:
                answer = await client.post(f"{place['url']}/v1/score{query}", json=body(number), headers=headers)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            found = answer.json()
            assert answer.status_code in (200, 202), found
            accepted.add(found["id"])
            if answer.status_code == 200:
                answered[found["id"]] = found["scores"]
                assert found["scores"] == [worth / 100 for worth in worths(number)]
            if answer.status_code == 200 or not wait:
                return

    async def run(service: Served, tasks: "set[asyncio.Task[None]]", kill: bool) -> None:
        place["url"] = service.url
        if kill:
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            await asyncio.to_thread(service.kill)
        else:
            await asyncio.wait(tasks)
            async with asyncio.timeout(HANG_SECONDS):
                await check(service)

    async def check(service: Served) -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
            for judgement in accepted:
                stored = (await client.get(f"/v1/judgements/{judgement}?wait={HANG_SECONDS}")).json()
                assert stored["status"] == "scored"
                assert stored["scores"] == answered.get(judgement, stored["scores"])

    async with httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        tasks = {asyncio.create_task(ask(client, number)) for number in range(GROUPS)}
        for kill in [True] * KILLS + [False]:
            async with served(settings) as service:
                asked_before, kept_before = stub.asked.copy(), kept(tmp_path)
                assert all(asked_before[question] for question in kept_before)
                await run(service, tasks, kill)
                again = {q for q in kept_before if stub.asked[q] > asked_before[q]}
                assert again == set()  # a reply that was kept is never asked for again
        await asyncio.gather(*tasks)
    assert len(accepted) == GROUPS  # none doubled
    assert len(stub.asked) == 2 * GROUPS
    assert stub.asked.total() - len(stub.asked) <= KILLS * CALLS  # at most what the groups being judged had not kept


async def test_killed_while_members_arrive_it_loses_none_and_judges_no_group_twice(
    tmp_path: Path, endpoint: Endpoint, database_url: str
):
    stub = Stub(0.05)
    endpoint.script = [stub]
    judge = {"concurrency": CONCURRENCY}
    limits = ServiceLimits(concurrent_groups=AT_ONCE)
    settings = config_of(tmp_path, endpoint, judge, port=0, limits=limits, database=database_url)
    chance = random.Random(11)
    place = {"url": ""}
    judgements: dict[int, set[str]] = {}

    async def send(client: httpx.AsyncClient, number: int, index: int) -> None:
        """Sends a member until it has its score; every third caller holds no connection, and asks again."""
        await asyncio.sleep(chance.uniform(0, 1.5))
        worth = worths(number)[index]
        content = {"expected": 3, "id": f"m{index}", "messages": messages(f"answer {number}, worth {worth}")}
        query = "?wait=false" if index == 2 else ""
        while True:
            try:
                answer = await client.post(f"{place['url']}/v1/groups/g{number}/members{query}", json=content)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            found = answer.json()
            assert answer.status_code in (200, 202), found
            judgements.setdefault(number, set()).add(found["judgement"])
            if answer.status_code == 200:
                assert found["score"] == worth / 100
                return
            await asyncio.sleep(0.1)

    members = [(number, index) for number in range(GROUPS) for index in range(3)]
    chance.shuffle(members)
    async with httpx.AsyncClient(timeout=HANG_SECONDS, limits=httpx.Limits(max_connections=200)) as client:
        tasks = {asyncio.create_task(send(client, *member)) for member in members}
        for _ in range(KILLS):
            async with served(settings) as service:
                place["url"] = service.url
                await asyncio.sleep(chance.uniform(0.05, 0.6))
                await asyncio.to_thread(service.kill)
        async with served(settings) as service, asyncio.timeout(HANG_SECONDS):
            place["url"] = service.url
            await asyncio.gather(*tasks)
    assert [len(ids) for ids in judgements.values()] == [1] * GROUPS
    assert len(stub.asked) == 2 * GROUPS
    assert stub.asked.total() - len(stub.asked) <= KILLS * CALLS  # at most what the groups being judged had not kept


def kept(folder: Path) -> set[str]:
    """The questions whose replies are in the database, as the stub saw their messages."""
    import zstandard

    path = folder / "service.sqlite"
    if not path.exists():
        return set()
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT question FROM replies").fetchall()
    parts = [json.loads(zstandard.ZstdDecompressor().decompress(packed)) for (packed,) in rows]
    return {part["messages"] for part in parts}


async def test_told_to_stop_it_finishes_what_it_judges(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [Stub(0.5)]
    async with served(config_of(tmp_path, endpoint, port=0)) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
            asking = asyncio.create_task(client.post("/v1/score", json=body(1)))
            async with asyncio.timeout(HANG_SECONDS):
                while not endpoint.requests:  # noqa: ASYNC110 - of another thread
                    await asyncio.sleep(0.01)
            status = await asyncio.to_thread(service.stop)
            answer = await asking
        assert (status, answer.status_code) == (0, 200)
        assert answer.json()["scores"] == [worth / 100 for worth in worths(1)]


async def test_connections_that_send_too_slowly_are_ended(tmp_path: Path, endpoint: Endpoint):
    config = config_of(tmp_path, endpoint, port=0, limits=ServiceLimits(body_seconds=0.5))
    async with served(config) as service:
        url = httpx.URL(service.url)
        slow = socket.create_connection((url.host, url.port), timeout=HANG_SECONDS)
        slow.sendall(b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        answer = await asyncio.to_thread(slow.recv, 100_000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer.lower()
