"""What a request may say twice, and where: of two values one would be ignored in silence."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from tests.judge.service.in_process import group, messages, outcome, serving

pytestmark = pytest.mark.slow


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    judge = JudgeConfig(models="stand-in", rubric="- ends with a message")
    async with serving(ServiceConfig(database=str(tmp_path / "service.sqlite"), judge=judge)) as client:
        yield client


@pytest.mark.parametrize("name", ["Authorization", "X-API-Key", "Idempotency-Key"])
async def test_a_header_of_which_one_counts_stands_once(client: httpx.AsyncClient, name: str):
    headers = [(name, "a"), (name, "b")]
    refused = await client.post("/v1/score", json=group("a", ""), headers=headers)
    assert outcome(refused) == (400, "repeated-header")
    assert refused.json()["remedy"]


@pytest.mark.parametrize(
    "path", ["/v1/score?wait=true&wait=false", "/v1/groups/g/members?wait=1&wait=1", "/v1/score?wait=&wait"]
)
async def test_a_query_has_one_value_of_each_name(client: httpx.AsyncClient, path: str):
    refused = await client.post(path, json=group("a", ""))
    assert outcome(refused) == (422, "invalid-request")
    assert "several values of wait" in refused.json()["detail"]


async def test_a_list_in_a_query_has_several(client: httpx.AsyncClient):
    assert (await client.get("/v1/judgements?status=scored&status=failed")).status_code == 200
    assert outcome(await client.get("/v1/judgements?limit=1&limit=2")) == (422, "invalid-request")


NAMES = ["a b", "a\nb", "...", "ü😀", "%2F", "a;b", "a?b#c", "\u202eright", "\ufeff", " ", "a\\b", "e\u0301", "\u00e9"]


async def test_every_name_that_is_taken_is_found_again_at_its_address(client: httpx.AsyncClient):
    async def sent(name: str) -> None:
        body = {"expected": 60, "id": name, "messages": messages("a")}
        path = f"/v1/groups/{quote(name, safe='')}/members?wait=false"
        accepted = await client.post(path, json=body)
        assert accepted.status_code == 202, name
        found = await client.get(accepted.headers["location"])
        assert (found.status_code, found.json()["group"], found.json()["id"]) == (202, name, name)

    await asyncio.gather(*map(sent, NAMES))


@pytest.mark.parametrize("name", ["a/b", "/", "..", ".", "a\0b", "../../v1"])
async def test_a_name_that_is_not_taken_is_refused(client: httpx.AsyncClient, name: str):
    body = {"expected": 2, "id": name, "messages": messages("a")}
    assert outcome(await client.post("/v1/groups/g/members", json=body)) == (422, "invalid-request")
    path = f"/v1/groups/{quote(name, safe='').replace('.', '%2E')}/members"
    assert (await client.post(path, json={**body, "id": "m"})).status_code in (404, 422)
