"""Groups whose members arrive one by one: what does not fit, and nothing waits for ever. Scores: test_wire_answers."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.judge.service.config import ServiceLimits
from tests.endpoint import Endpoint
from tests.judge.service.in_process import config_of, messages, outcome, serving
from tests.judge.service.processes import served
from tests.judge.service.stub import by_content_and_position
from tests.limits import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow


def member(name: str, expected: int = 5, **more: Any) -> dict[str, Any]:
    return {"expected": expected, "id": name, "messages": messages(f"answer-worth-{name}"), **more}


@pytest.fixture
async def client(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    endpoint.script = [by_content_and_position]
    limits = ServiceLimits(members=8, body_bytes=20_000)
    async with serving(config_of(tmp_path, endpoint, limits=limits)) as client:
        yield client


CONFLICTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another number of members": (member("m1", 3), "group-differs", "settings: expected (2, not 3)."),
    "another rubric": (member("m1", 2, rubric="Be short."), "group-differs", "settings: rubric."),
    "an id with other content": ({**member("m1", 2), "id": "m0"}, "member-differs", "another member 'm0' already."),
}


@pytest.mark.parametrize("what", CONFLICTS)
async def test_a_member_that_does_not_fit_is_refused_and_the_group_stays_as_it_is(what: str, client: httpx.AsyncClient):
    body, expected, detail = CONFLICTS[what]
    await client.post("/v1/groups/g/members?wait=false", json=member("m0", 2))
    refused = await client.post("/v1/groups/g/members", json=body)
    assert outcome(refused) == (409, expected)
    assert refused.json()["detail"].endswith(detail)
    assert refused.json()["remedy"]
    whole = await client.post("/v1/groups/g/members", json=member("m1", 2))
    assert [whole.json()[name] for name in ("status", "expected", "arrived")] == ["scored", 2, 2]
    assert outcome(await client.post("/v1/groups/g/members", json=member("m2", 2))) == (409, "group-full")


async def test_members_that_are_too_large_together_are_refused(client: httpx.AsyncClient):
    sent = [member(name, 3, metadata={"a": "y" * 15_000}) for name in ("x" * 100, "z")]
    found = [outcome(await client.post("/v1/groups/g/members?wait=false", json=one)) for one in sent]
    assert found == [(202, ""), (413, "group-too-large")]


@pytest.mark.parametrize(("on_deadline", "status"), [("judge", "scored"), ("unscored", "unscored")])
async def test_at_the_deadline_those_that_came_are_judged_or_left_unscored(
    on_deadline: str, status: str, client: httpx.AsyncClient, endpoint: Endpoint
):
    settings: dict[str, Any] = {"deadline_seconds": 0.3, "on_deadline": on_deadline}
    answers = await asyncio.gather(
        *(client.post("/v1/groups/g/members", json=member(name, 3, **settings)) for name in ("m0", "m1"))
    )
    assert [answer.json()["status"] for answer in answers] == [status, status]
    scored = [answer.json()["score"] is not None for answer in answers]
    assert scored == [status == "scored"] * 2
    assert bool(endpoint.requests) == (status == "scored")
    if status == "unscored":
        assert answers[0].json()["reason"] == "only 2 of 3 members came before the group's deadline"
    late = await client.post("/v1/groups/g/members", json=member("m2", 3, **settings))
    assert outcome(late) == (409, "group-closed")


async def test_a_stopping_service_keeps_nobody_waiting_for_members_that_cannot_come(tmp_path: Path, endpoint: Endpoint):
    limits = ServiceLimits(shutdown_seconds=2 * HANG_SECONDS)  # longer than `stop` waits
    async with (
        served(config_of(tmp_path, endpoint, port=0, limits=limits)) as service,
        httpx.AsyncClient(timeout=HANG_SECONDS) as client,
    ):
        waiting = asyncio.create_task(client.post(f"{service.url}/v1/groups/g/members", json=member("m0", 2)))
        metrics = partial(httpx.get, f"{service.url}/metrics", timeout=HANG_SECONDS)
        await asyncio.to_thread(wait_until, lambda: "gavel_waiting_requests 1.0" in metrics().text)
        assert await asyncio.to_thread(service.stop) == 0
        answer = await waiting
        assert (answer.status_code, answer.json()["status"]) == (202, "open")


async def test_open_groups_go_on_after_a_kill(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    config = config_of(tmp_path, endpoint, port=0)
    async with httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        async with served(config) as first:
            for group, body in (("g", member("m0", 2)), ("late", member("m0", 2, deadline_seconds=1.0))):
                accepted = await client.post(f"{first.url}/v1/groups/{group}/members?wait=false", json=body)
                assert accepted.status_code == 202
            first.kill()
        async with served(config) as second:
            whole = await client.post(f"{second.url}/v1/groups/g/members", json=member("m1", 2))
            assert (whole.status_code, whole.json()["arrived"]) == (200, 2)
            alone = await client.get(f"{second.url}/v1/groups/late/members/m0?wait=30")
            assert (alone.status_code, alone.json()["arrived"], alone.json()["score"]) == (200, 1, None)


async def test_a_group_that_waits_for_members_can_be_deleted_and_who_waits_is_told(
    client: httpx.AsyncClient, endpoint: Endpoint
):
    first = await client.post("/v1/groups/g/members?wait=false", json=member("m0", 3))
    waiting = asyncio.create_task(client.post("/v1/groups/g/members", json=member("m1", 3)))
    async with asyncio.timeout(HANG_SECONDS):
        while (await client.get(first.headers["location"])).json()["arrived"] < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await client.delete(f"/v1/judgements/{first.json()['judgement']}")).status_code == 204
    told = await waiting
    assert outcome(told) == (404, "not-found")
    assert "deleted" in told.json()["detail"]
    assert (await client.get(first.headers["location"])).status_code == 404
    assert (await client.delete(f"/v1/judgements/{first.json()['judgement']}")).status_code == 404
    again = await client.post("/v1/groups/g/members?wait=false", json=member("m2", 2))
    assert (again.status_code, again.json()["arrived"]) == (202, 1)
    assert endpoint.requests == []
