"""Several processes over one database: work is shared, taken over, and survives the restart of PostgreSQL's server."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.judge.service.client import JudgeClient
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint
from tests.judge.service.in_process import config_of
from tests.judge.service.postgresql import Cluster
from tests.judge.service.processes import served
from tests.judge.service.stub import Stub, body, expected
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path, endpoint: Endpoint, database_url: str) -> ServiceConfig:
    limits = ServiceLimits(concurrent_groups=2, lease_seconds=2)
    return config_of(tmp_path, endpoint, port=0, limits=limits, database=database_url)


async def test_another_process_answers_for_what_one_judges_and_takes_over_when_it_dies(
    config: ServiceConfig, endpoint: Endpoint
):
    endpoint.script = [stub := Stub(0.1)]
    async with (
        served(config) as one,
        served(config) as other,
        httpx.AsyncClient(timeout=HANG_SECONDS) as client,
    ):
        ids = dict[str, int]()
        for number in range(12):
            accepted = await client.post(f"{one.url}/v1/score?wait=false", json=body(number))
            ids[accepted.json()["id"]] = number
        first, *_ = ids
        asked = f"{other.url}/v1/judgements/{first}?wait={HANG_SECONDS}"
        assert (await client.get(asked)).json()["scores"] == expected(ids[first])
        await asyncio.to_thread(one.kill)
        for judgement, number in ids.items():
            answer = await client.get(f"{other.url}/v1/judgements/{judgement}?wait={HANG_SECONDS}")
            assert answer.json()["scores"] == expected(number)
    assert len(stub.asked) == 24
    assert stub.asked.total() - len(stub.asked) <= 4  # what was in flight: two orders of two groups


async def test_groups_whose_members_waited_at_a_process_that_dies_are_judged_by_the_other(
    config: ServiceConfig, endpoint: Endpoint
):
    endpoint.script = [stub := Stub(0.1)]

    async def send(client: httpx.AsyncClient, urls: list[str], number: int, index: int) -> float:
        """The score of a member, which is sent to the other process when the connection to one breaks."""
        content = {"expected": 3, "id": f"m{index}", "messages": body(number)["trajectories"][index]["messages"]}
        place = index % 2
        while True:
            try:
                answer = await client.post(f"{urls[place]}/v1/groups/g{number}/members", json=content)
            except httpx.TransportError:
                place = 1
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()["score"]

    async with (
        served(config) as one,
        served(config) as other,
        httpx.AsyncClient(timeout=HANG_SECONDS) as client,
        asyncio.timeout(HANG_SECONDS),
    ):
        urls = [one.url, other.url]
        early = [asyncio.create_task(send(client, urls, number, index)) for number in range(8) for index in (0, 1)]
        await asyncio.wait(early, timeout=0.5)
        late = [asyncio.create_task(send(client, urls, number, 2)) for number in range(8)]
        await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(one.kill)
        scores = await asyncio.gather(*early, *late)
    pairs, last = scores[:16], scores[16:]
    assert [[*pairs[2 * number : 2 * number + 2], last[number]] for number in range(8)] == list(map(expected, range(8)))
    assert len(stub.asked) == 16
    assert stub.asked.total() - len(stub.asked) <= 4  # what was in flight: two orders of two groups


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_clients_get_their_scores_though_the_database_restarts(
    config: ServiceConfig, endpoint: Endpoint, postgresql: Cluster
):
    endpoint.script = [Stub(0.1)]

    def group(number: int) -> TrajectoryGroup:
        members: list[dict[str, Any]] = body(number)["trajectories"]
        return TrajectoryGroup(Trajectory(messages_and_choices=[*member["messages"]]) for member in members)

    async with served(config) as service, JudgeClient(service.url, deadline=HANG_SECONDS) as client:
        asking = [asyncio.create_task(client.score(group(number))) for number in range(16)]
        async with asyncio.timeout(HANG_SECONDS), httpx.AsyncClient(base_url=service.url) as watcher:
            while not any(task.done() for task in asking):
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(postgresql.stop)
            try:
                away = await watcher.get("/readyz")
                assert (away.status_code, away.json()["type"]) == (503, "urn:gavel:problem:database-unavailable")
                assert away.headers["retry-after"]
            finally:
                await asyncio.to_thread(postgresql.start)
        judged = await asyncio.gather(*asking)
    assert [[t.reward for t in one] for one in judged] == [expected(number) for number in range(16)]
