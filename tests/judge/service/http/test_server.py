"""The service as processes: killed, stopped, slow clients, and several on one port."""

import asyncio
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.llm.cassette import Question
from tests.endpoint import Endpoint
from tests.judge.service.in_process import MODEL, config_of, group
from tests.judge.service.processes import served
from tests.judge.service.stub import Stub, body, expected
from tests.limits import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow
CONCURRENCY = 6
AT_ONCE = 8
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
                assert found["scores"] == expected(number)
            if answer.status_code == 200 or not wait:
                return

    async with httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        tasks = {asyncio.create_task(ask(client, number)) for number in range(GROUPS)}
        for kill in [True] * KILLS + [False]:
            async with served(settings) as service:
                asked_before, kept_before = stub.asked.copy(), kept(tmp_path, endpoint.params, stub)
                assert all(asked_before[question] for question in kept_before)
                place["url"] = service.url
                if kill:
                    await asyncio.sleep(chance.uniform(0.05, 0.6))
                    await asyncio.to_thread(service.kill)
                else:
                    await asyncio.wait(tasks)
                    async with asyncio.timeout(HANG_SECONDS):
                        for judgement in accepted:
                            found = f"{service.url}/v1/judgements/{judgement}?wait={HANG_SECONDS}"
                            stored = (await client.get(found)).json()
                            assert stored["status"] == "scored"
                            assert stored["scores"] == answered.get(judgement, stored["scores"])
                again = {q for q in kept_before if stub.asked[q] > asked_before[q]}
                assert again == set()  # a reply that was kept is never asked for again
        await asyncio.gather(*tasks)
    assert len(accepted) == GROUPS  # none doubled
    assert len(stub.asked) == 2 * GROUPS
    assert stub.asked.total() - len(stub.asked) <= KILLS * CONCURRENCY  # at most what was in flight


def kept(folder: Path, params: dict[str, Any], stub: Stub) -> set[str]:
    """The questions whose replies are in the database, as the stub saw them."""
    path = folder / "service.sqlite"
    if not path.exists():
        return set()
    with sqlite3.connect(path) as database:
        keys = [key for (key,) in database.execute("SELECT key FROM replies")]
    asked = {Question(MODEL, params, *json.loads(each)).key: each for each in list(stub.asked)}
    return {asked[key] for key in keys}


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
        assert answer.json()["scores"] == expected(1)


async def test_connections_that_send_too_slowly_or_too_long_a_head_are_ended(tmp_path: Path, endpoint: Endpoint):
    slow = b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
    endless = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 2**16
    async with served(config_of(tmp_path, endpoint, port=0, limits=ServiceLimits(body_seconds=0.5))) as service:
        url = httpx.URL(service.url)
        for sent, status in ((slow, b"408"), (endless, b"400")):
            with socket.create_connection((url.host, url.port), timeout=HANG_SECONDS) as connection:
                connection.sendall(sent)
                answer = await asyncio.to_thread(connection.recv, 100_000)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert sent is endless or b"connection: close" in answer.lower()
        async with httpx.AsyncClient(base_url=service.url, timeout=HANG_SECONDS) as client:
            long = {"X-Long": "x" * 40_000}
            assert [(await client.get("/healthz", headers=long)).status_code for _ in range(3)] == [200] * 3


class Service:
    """`gavel serve --processes 2` in an interpreter of its own, whose children are forked from a fresh one."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        command = [sys.executable, "-m", "gavel", "serve", "--port", "0", "--processes", "2", "--judge", "constant"]
        # the caller's, without its settings and keys
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("GAVEL_", "OPENAI_"))}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def url(self) -> str:
        wait_until(lambda: "2 processes" in self._log.read_text() or self.process.poll() is not None)
        found = re.search(r"http://\S+", printed := self._log.read_text())
        assert found, printed
        return found[0]

    def children(self) -> set[int]:
        """The processes that serve: those that the supervisor spawned."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = {int(pid) for task in tasks for pid in task.read_text().split()}
        return {pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@contextmanager
def service(folder: Path) -> Iterator[Service]:
    started = Service(folder)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait(HANG_SECONDS)


def score(url: str) -> dict[str, Any]:
    """What one group gets over a connection of its own; a process that was killed may have taken it."""
    while True:
        with suppress(httpx.TransportError):
            answer = httpx.post(f"{url}/v1/score", json=group("yes", "no"), timeout=HANG_SECONDS)
            assert answer.status_code == 200
            return answer.json()


def is_refused(url: str) -> bool:
    with suppress(httpx.TransportError):
        try:
            httpx.get(f"{url}/healthz")
        except httpx.ConnectError:
            return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_answer_as_one_service_and_each_that_ends_is_replaced(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        url = running.url()
        before = running.children()
        assert len(before) == 2
        assert len({score(url)["id"] for _ in range(12)}) == 12
        assert 'gavel_groups_total{status="scored"} 12.0' in httpx.get(f"{url}/metrics").text
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        assert score(url)["status"] == "scored"
        wait_until(lambda: len(running.children() - {killed}) == 2)
        assert len(httpx.get(f"{url}/v1/judgements").json()["judgements"]) == 13
        running.process.terminate()
        assert running.process.wait(HANG_SECONDS) == 0
        assert is_refused(url)


@pytest.mark.thorough
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        url = running.url()
        running.process.kill()
        wait_until(lambda: is_refused(url))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_the_judge_may_do_is_shared_out_and_more_processes_than_calls_are_refused(processes: int) -> None:
    judge = JudgeConfig(models="constant", concurrency=32, max_cost_usd=1.5, max_tokens=1000, tokens_per_minute=90)
    part = ServiceConfig(judge=judge, processes=processes).share()
    assert part.judge.concurrency == 32 // processes
    assert part.judge.max_cost_usd == 1.5 / processes
    assert part.judge.max_tokens == 1000 // processes
    assert part.judge.tokens_per_minute == 90 // processes
    assert part.judge.requests_per_minute is None
    assert part.limits.connections == 10_000 // processes
    with pytest.raises(
        ValueError, match=rf"judge\.concurrency is {processes}, too little for {processes + 1} processes"
    ):
        ServiceConfig(judge=JudgeConfig(models="constant", concurrency=processes), processes=processes + 1)
