"""The engine without HTTP: what waits, what is refused, and what other processes leave."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.engine import worker
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import DatabaseUnavailableError, NotFoundError, OverloadedError
from gavel.judge.service.schemas.bodies import ScoreRequest
from gavel.judge.service.schemas.records import NewJudgement
from gavel.judge.service.store import leases
from gavel.judge.service.store.judgement_store import Store, new_id
from tests.endpoint import Answer, Endpoint, Request, fails, limit_attempts, scores
from tests.judge.service.in_process import config_of, group, running, serving
from tests.judge.service.stub import Stub, body, worths
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow


def request(number: int, **options: Any) -> ScoreRequest:
    return ScoreRequest.model_validate({**body(number), **options})


def expected(number: int) -> list[float]:
    return [worth / 100 for worth in worths(number)]


async def found(engine: Engine, judgement: str) -> list[float | None]:
    record = await engine.result(await engine.get(judgement), HANG_SECONDS)
    assert record.verdict is not None
    return [member.score for member in record.verdict.members]


def stored(request: ScoreRequest) -> NewJudgement:
    payload = request.model_dump_json(exclude_defaults=True).encode()
    return NewJudgement(new_id(), "", "", "a judge", len(request.trajectories), payload, 1.0)


async def test_more_groups_than_are_judged_at_once_wait_their_turn(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [Stub(0.01)]
    limits = ServiceLimits(concurrent_groups=1)
    async with running(config_of(tmp_path, endpoint, limits=limits)) as engine:
        records = await asyncio.gather(*(engine.score(request(number)) for number in range(12)))
        assert [[m.score for m in r.verdict.members] for r in records if r.verdict] == [expected(n) for n in range(12)]


async def test_too_many_waiting_groups_are_refused(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [endpoint.silence]
    limits = ServiceLimits(concurrent_groups=1, waiting_groups=2, shutdown_seconds=0)
    async with running(config_of(tmp_path, endpoint, limits=limits)) as engine:
        accepted = 0
        with pytest.raises(OverloadedError, match="wait already"):  # noqa: PT012 - counted
            while True:
                await engine.submit(request(accepted))
                accepted += 1
        assert accepted >= 2  # one is judged; of those that wait, one that is accepted during a count is counted twice


async def test_one_who_waits_too_long_gets_the_unfinished_record(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [endpoint.silence]
    limits = ServiceLimits(shutdown_seconds=0)
    async with running(config_of(tmp_path, endpoint, limits=limits)) as engine:
        record = await engine.score(request(1), wait=0.05)
        assert not record.is_finished
        assert await engine.result(record, wait=0.05) == record


async def test_one_who_waits_for_a_judgement_that_is_deleted_is_told(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [endpoint.silence]
    async with running(config_of(tmp_path, endpoint, limits=ServiceLimits(shutdown_seconds=0))) as engine:
        record = (await engine.submit(request(1))).record
        waiting = asyncio.create_task(engine.result(record))
        await asyncio.sleep(0.05)
        await engine.delete(record.id)
        with pytest.raises(NotFoundError):
            await waiting
        with pytest.raises(NotFoundError):
            await engine.get(record.id)


async def test_what_a_dead_process_left_is_judged_at_the_start(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [Stub(0.0)]
    config = config_of(tmp_path, endpoint)
    async with running(config) as engine:
        dead = engine.worker.owner.rpartition(" ")[0].rpartition(" ")[0] + " 4194305 00"  # no such process
        left = stored(request(1))
        await engine.store.accept(left, dead)
    async with running(config) as engine:
        assert await found(engine, left.id) == expected(1)


async def test_a_group_that_ends_process_after_process_is_given_up(tmp_path: Path, endpoint: Endpoint):
    config = config_of(tmp_path, endpoint, limits=ServiceLimits(leases=2))
    async with running(config) as engine:
        left = stored(request(1))
        await engine.worker.stop(0)
        await engine.store.accept(left)
        for _ in range(2):
            await engine.database.write(lambda c: leases.take(c, "another", 5, []))
            await engine.database.write(lambda c: leases.end(c, ["another"]))
    async with running(config) as engine:
        assert await found(engine, left.id) == [None, None, None]
        record = await engine.get(left.id)
        assert record.status == "failed"
        assert record.verdict is not None
        assert "begun 2 times" in (record.verdict.problem or "")
    assert endpoint.requests == []


async def test_a_stored_request_that_cannot_be_read_is_failed(tmp_path: Path, endpoint: Endpoint):
    async with running(config_of(tmp_path, endpoint)) as engine:
        left = NewJudgement(new_id(), "", "", "a judge", 2, b'{"version": 9}', 1.0)
        await engine.store.accept(left)
        assert await found(engine, left.id) == [None, None]


async def test_votes_that_are_lost_while_the_database_is_away_are_asked_for_again(tmp_path: Path, endpoint: Endpoint):
    async with running(config_of(tmp_path, endpoint)) as engine:
        stub = Stub(0.0)

        def outage(request: Request) -> Any:
            engine.database.outages += 1
            return scores(7.0)(request)  # what nobody can read as a score, as if its reply were lost

        endpoint.script = [outage] * 6 + [stub]
        record = await engine.score(request(1))
        assert record.verdict is not None
        assert [member.score for member in record.verdict.members] == expected(1)


async def test_an_unforeseen_error_is_a_failed_judgement_and_tells_no_transcript(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    transcript = "a sec" + "ret transcript"
    async with running(config_of(tmp_path, endpoint)) as engine:

        async def breaks(group: object, **options: object) -> None:
            raise ValueError(transcript)

        monkeypatch.setattr(engine.judges.default, "score", breaks)
        record = await engine.score(ScoreRequest.model_validate(group(transcript, "b")))
        assert record.status == "failed"
        assert record.verdict is not None
        assert record.verdict.problem == "an internal error: ValueError."
        assert "ValueError" in caplog.text
        assert transcript not in caplog.text


@pytest.mark.parametrize("outage", ["failing", "dripping"])
async def test_a_group_whose_judge_was_away_is_judged_again_by_the_same_key_and_members(
    outage: str, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    limit_attempts(monkeypatch, 1)
    endpoint.script = [fails(500) if outage == "failing" else lambda _: Answer(b" " * 10_000, drip=60.0)]
    judge = {"timeout": 0.5, "deadline": 1.0}
    async with serving(config_of(tmp_path, endpoint, judge)) as client:

        async def ask() -> list[httpx.Response]:
            return await asyncio.gather(
                client.post("/v1/score", json=body(1), headers={"Idempotency-Key": "k"}),
                *(client.post("/v1/groups/g/members", json=one) for one in members),
            )

        members = [
            {"expected": 3, "id": f"m{n}", "messages": one["messages"]} for n, one in enumerate(body(2)["trajectories"])
        ]
        away = await ask()
        assert [(answer.status_code, answer.json()["type"]) for answer in away] == [
            (502, "urn:gavel:problem:judge-failed")
        ] * 4
        endpoint.script = [Stub(0.0)]
        whole, *each = await ask()
        assert whole.json()["id"] == away[0].json()["judgement"]
        assert whole.json()["scores"] == expected(1)
        assert [answer.json()["score"] for answer in each] == expected(2)


async def test_who_waits_for_an_outcome_that_cannot_be_written_is_told(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_STUCK_SECONDS", 0.0)
    endpoint.script = [Stub(0.0)]
    is_full = True
    finish = Store.finish

    async def finishing(store: Store, *arguments: Any) -> Any:
        if is_full:
            raise DatabaseUnavailableError("the database does not answer: the disk is full.", "Make room.")
        return await finish(store, *arguments)

    monkeypatch.setattr(Store, "finish", finishing)
    async with running(config_of(tmp_path, endpoint)) as engine, asyncio.timeout(HANG_SECONDS):
        record = (await engine.submit(request(1))).record
        with pytest.raises(DatabaseUnavailableError):
            await engine.result(record)
        is_full = False
        assert await found(engine, record.id) == expected(1)
