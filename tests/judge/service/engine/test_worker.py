"""What is charged, and what is left in the database, when judging ends otherwise than with a judgement."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.engine.admission import Caller
from gavel.judge.service.schemas.bodies import ScoreRequest
from gavel.judge.service.schemas.records import KeyScope, Verdict
from gavel.judge.service.store import judgement_store
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.key_store import Key, KeyStore
from gavel.judge.service.store.tables import replies
from tests.endpoint import Answer, Endpoint, Request, fails, says
from tests.judge.service.in_process import config_of, group, running, serving
from tests.judge.service.stub_judge import by_content_and_position
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
MARKER = "zebra-4711"


class Held:
    """A judge model that answers when it is let."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer:
        self.is_asked.set()
        assert self.may_answer.wait(HANG_SECONDS)
        return by_content_and_position(request)


def make_key(config: ServiceConfig, **scope: Any) -> tuple[dict[str, str], str]:
    """The header of a new key, and its id."""
    database = Database.open(config.database)
    try:
        token, key = KeyStore(database).create("a test", KeyScope(**scope))
    finally:
        database.close()
    return {"Authorization": f"Bearer {token}"}, key.id


def read_key(config: ServiceConfig, key_id: str) -> Key:
    database = Database.open(config.database)
    try:
        return next(key for key in KeyStore(database).all_now() if key.id == key_id)
    finally:
        database.close()


def reply_count(config: ServiceConfig) -> int:
    database = Database.open(config.database)
    try:
        query = sa.select(sa.func.count()).select_from(replies)
        return database.read_now(lambda connection: connection.execute(query).scalar_one())
    finally:
        database.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            if await asyncio.to_thread(holds):
                return
            await asyncio.sleep(0.05)


async def test_what_was_in_flight_for_a_deleted_judgement_is_charged_and_erased_and_no_more_is_asked(
    tmp_path: Path, endpoint: Endpoint
):
    held = Held()
    endpoint.script = [by_content_and_position]
    config = config_of(tmp_path, endpoint, {"orders": 4, "concurrency": 1})
    headers, key_id = make_key(config, max_cost_usd=1.0)
    async with serving(config) as client:
        whole = (await client.post("/v1/score", json=group("a", "b", orders=1), headers=headers)).json()
        endpoint.script = [held]
        endpoint.requests.clear()
        body = group(f"{MARKER} c", "d", "e")
        accepted = await client.post("/v1/score?wait=false", json=body, headers=headers)
        assert await asyncio.to_thread(held.is_asked.wait, HANG_SECONDS)
        place = accepted.headers["location"]
        assert (await client.delete(place, headers=headers)).status_code == 204
        held.may_answer.set()
        await until(lambda: read_key(config, key_id).spent_usd > 1.5 * whole["cost_usd"])
        assert len(endpoint.requests) == 1
        assert (await client.get(place, headers=headers)).status_code == 404
        again = await client.post("/v1/score", json=group("f", "g"), headers=headers)
        assert again.status_code == 200  # the key's budget is known to the cent
    key = read_key(config, key_id)
    assert key.spent_usd == pytest.approx(2 * whole["cost_usd"] + again.json()["cost_usd"])
    assert key.unpriced_groups == 0
    assert reply_count(config) == whole["calls"] + again.json()["calls"]
    assert MARKER.encode() not in await asyncio.to_thread(Path(config.database).read_bytes)


async def test_a_judgement_that_fails_after_a_paid_call_is_charged(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position, fails(401)]
    config = config_of(tmp_path, endpoint, {"orders": 2, "concurrency": 1})
    headers, key_id = make_key(config)
    async with serving(config) as client:
        refused = await client.post("/v1/score", json=group("a", "b"), headers=headers)
        assert refused.status_code == 502
    assert read_key(config, key_id).spent_usd > 0


async def test_a_stop_charges_what_was_answered(tmp_path: Path, endpoint: Endpoint):
    held = Held()
    endpoint.script = [by_content_and_position, held]
    limits = ServiceLimits(shutdown_seconds=0)
    config = config_of(tmp_path, endpoint, {"orders": 2, "concurrency": 1}, limits=limits)
    headers, key_id = make_key(config, max_cost_usd=1.0)
    async with serving(config) as client:
        await client.post("/v1/score?wait=false", json=group("a", "b"), headers=headers)
        assert await asyncio.to_thread(held.is_asked.wait, HANG_SECONDS)
    held.may_answer.set()
    key = read_key(config, key_id)
    assert key.spent_usd > 0
    assert key.unpriced_groups == 0


async def test_a_judgement_that_another_process_finished_first_is_charged_once_each(tmp_path: Path, endpoint: Endpoint):
    held = Held()
    endpoint.script = [held]
    config = config_of(tmp_path, endpoint, {"orders": 1})
    _, key_id = make_key(config)
    async with running(config) as engine:
        request = ScoreRequest.model_validate(group("a", "b"))
        record = (await engine.submit(request, Caller(key_id))).record
        assert await asyncio.to_thread(held.is_asked.wait, HANG_SECONDS)
        await engine.store.finish(record, Verdict.unscored(["0", "1"], "elsewhere"))
        held.may_answer.set()
        await until(lambda: read_key(config, key_id).spent_usd > 0)
        kept = await engine.store.get(record.id)
        assert kept is not None
        assert kept.status == "unscored"


def refuses(*words: str) -> Callable[[Request], Answer]:
    """A judge model that refuses prompts with one of the words."""

    def step(request: Request) -> Answer:
        text = str(request["messages"])
        if any(word in text for word in words):
            return says("", refusal="I cannot help with that.")
        return by_content_and_position(request)

    return step


async def test_replies_of_a_search_for_what_is_refused_are_erased_too(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [refuses("rude")]
    config = config_of(tmp_path, endpoint)
    answers = ["rude", f"{MARKER} kind", "warm", "mild", "calm", "soft", "good", "fair"]
    async with serving(config) as client:
        judged = await client.post("/v1/score", json=group(*answers, retain=False))
        assert judged.status_code == 200
        assert sum(score is None for score in judged.json()["scores"]) == 1
    assert reply_count(config) == 0
    async with serving(config) as client:
        judged = await client.post("/v1/score", json=group(*answers))
        assert reply_count(config) > 0
        await client.delete(judged.headers["location"])
    assert reply_count(config) == 0


async def test_what_is_deleted_while_its_outcome_is_written_is_charged_and_erased(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    config = config_of(tmp_path, endpoint, {"orders": 1})
    headers, key_id = make_key(config)

    async def begin_and_delete(client: httpx.AsyncClient, number: int) -> None:
        body = group(f"{MARKER} {number}", "b")
        accepted = await client.post("/v1/score?wait=false", json=body, headers=headers)
        await asyncio.sleep(0.004 * number)
        assert (await client.delete(accepted.headers["location"], headers=headers)).status_code == 204

    async with serving(config) as client:
        one = (await client.post("/v1/score", json=group("a", "b"), headers=headers)).json()["cost_usd"]
        await asyncio.gather(*(begin_and_delete(client, number) for number in range(20)))
        await until(lambda: read_key(config, key_id).spent_usd > (len(endpoint.requests) - 0.5) * one)
    assert read_key(config, key_id).spent_usd == pytest.approx(len(endpoint.requests) * one)
    assert reply_count(config) == 1


async def test_a_judgement_that_cannot_be_stored_fails_at_once_and_is_charged(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    endpoint.script = [by_content_and_position]
    config = config_of(tmp_path, endpoint)
    headers, key_id = make_key(config)
    whole = judgement_store.outcome_columns

    def too_large(verdict: Verdict, finished_at: float) -> dict[str, Any]:
        return whole(verdict, finished_at) | ({"prompt_tokens": 2**64} if verdict.group else {})

    monkeypatch.setattr(judgement_store, "outcome_columns", too_large)
    async with serving(config) as client, asyncio.timeout(HANG_SECONDS):
        refused = await client.post("/v1/score", json=group("a", "b"), headers=headers)
    assert refused.status_code == 502
    assert refused.json()["detail"] == "the judgement cannot be stored: OverflowError."
    assert read_key(config, key_id).spent_usd > 0
    assert len(endpoint.requests) == 2
