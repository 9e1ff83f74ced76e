"""What is accepted is judged, charged, answered and traced, whoever dies, deletes or waits meanwhile."""

import asyncio
import gzip
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.engine import worker
from gavel.judge.service.engine.admission import Key, KeyStore
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import DatabaseUnavailableError, OverloadedError
from gavel.judge.service.schemas import Record, ScoreRequest
from gavel.judge.service.store import leases
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.judgement_store import Store, new_id
from gavel.judge.service.store.tables import replies
from tests.endpoint import Answer, Endpoint, Request, fails, limit_attempts, scores
from tests.judge.service.in_process import config_of, group, make_key, outcome, running, serving
from tests.judge.service.stub import Stub, body, by_content_and_position, expected
from tests.limits import HANG_SECONDS, wait_until
from tests.scenarios.formats.test_export import Collector

pytestmark = pytest.mark.slow


def request(number: int, **options: Any) -> ScoreRequest:
    return ScoreRequest.model_validate({**body(number), **options})


async def found(engine: Engine, judgement: str) -> list[float | None]:
    record = await engine.result(await engine.get(judgement), HANG_SECONDS)
    assert record.verdict is not None
    return [member.score for member in record.verdict.members]


async def stored(engine: Engine, payload: str) -> Record:
    """A judgement of this request that is in the database."""
    record = Record(new_id(), "", "", "queued", "a judge", len(expected(1)), 1.0)
    return (await engine.store.accept(record, payload.encode()))[0]


async def test_too_many_waiting_groups_are_refused(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [endpoint.silence]
    limits = ServiceLimits(concurrent_groups=1, waiting_groups=2, shutdown_seconds=0)
    async with running(config_of(tmp_path, endpoint, limits=limits)) as engine:
        accepted = 0
        with pytest.raises(OverloadedError, match="wait already"):  # noqa: PT012 - counted
            while True:
                await engine.submit(request(accepted))
                accepted += 1
        assert accepted >= 3  # one is judged, two wait in the database, some in memory


async def test_a_group_that_ends_every_process_or_cannot_be_read_is_given_up(tmp_path: Path, endpoint: Endpoint):
    config = config_of(tmp_path, endpoint, limits=ServiceLimits(leases=2))
    async with running(config) as engine:
        await engine.worker.stop(0)
        left = await stored(engine, request(1).model_dump_json(exclude_defaults=True))
        for _ in range(2):
            await engine.database.write(lambda c: leases.take(c, "another", 5, []))
            await engine.database.write(lambda c: leases.end(c, ["another"]))
    async with running(config) as engine:
        assert await found(engine, left.id) == [None, None, None]
        record = await engine.get(left.id)
        assert record.status == "failed"
        assert record.verdict is not None
        assert "begun 2 times" in (record.verdict.problem or "")
        unreadable = await stored(engine, '{"version": 9}')
        assert await found(engine, unreadable.id) == [None, None, None]
    assert endpoint.requests == []


async def test_votes_that_are_lost_while_the_database_is_away_are_asked_for_again(tmp_path: Path, endpoint: Endpoint):
    async with running(config_of(tmp_path, endpoint)) as engine:
        stub = Stub(0.0)

        def outage(request: Request) -> Any:
            engine.database.outages += 1
            return scores(7.0)(request)  # what nobody can read as a score, as if its reply were lost

        endpoint.script = [outage] * 6 + [stub]
        record = await engine.result(await engine.submit(request(1)))
        assert record.verdict is not None
        assert [member.score for member in record.verdict.members] == expected(1)


@pytest.mark.parametrize("outage", ["failing", "dripping", "silent"])
async def test_a_group_whose_judge_was_away_is_judged_again_by_the_same_key_and_members(
    outage: str, tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    limit_attempts(monkeypatch, 1)
    drips = Answer(b" " * 10_000, drip=60.0)
    steps = {"failing": fails(500), "dripping": lambda _: drips, "silent": endpoint.silence}
    endpoint.script = [steps[outage]]
    judge = {"timeout": 0.5, "deadline": 1.0}
    async with serving(config_of(tmp_path, endpoint, judge)) as client:

        async def ask() -> list[httpx.Response]:
            return await asyncio.gather(
                client.post("/v1/score", json=body(1), headers={"Idempotency-Key": "k"}),
                *(client.post("/v1/groups/g/members", json=one) for one in members),
            )

        members = [{"expected": 3, "id": f"m{n}", **one} for n, one in enumerate(body(2)["trajectories"])]
        away = await ask()
        assert [outcome(answer) for answer in away] == [(502, "judge-failed")] * 4
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
        record = await engine.submit(request(1))
        with pytest.raises(DatabaseUnavailableError):
            await engine.result(record)
        is_full = False
        assert await found(engine, record.id) == expected(1)


MARKER = "zebra-4711"


def read_key(config: ServiceConfig, key_id: str) -> Key:
    with closing(Database.open(config.database)) as database:
        return next(key for key in KeyStore(database).all_now() if key.id == key_id)


async def test_what_was_in_flight_for_a_deleted_judgement_is_charged_and_erased_and_no_more_is_asked(
    tmp_path: Path, endpoint: Endpoint
):
    is_asked, may_answer = threading.Event(), threading.Event()

    def held(request: Request) -> Answer:
        is_asked.set()
        assert may_answer.wait(HANG_SECONDS)
        return by_content_and_position(request)

    endpoint.script = [by_content_and_position]
    config = config_of(tmp_path, endpoint, {"orders": 4, "concurrency": 1})
    token, key_id = make_key(config, max_cost_usd=1.0)
    headers = {"Authorization": f"Bearer {token}"}
    async with serving(config) as client:
        whole = (await client.post("/v1/score", json=group("a", "b", orders=1), headers=headers)).json()
        endpoint.script = [held]
        endpoint.requests.clear()
        body = group(f"{MARKER} c", "d", "e")
        accepted = await client.post("/v1/score?wait=false", json=body, headers=headers)
        assert await asyncio.to_thread(is_asked.wait, HANG_SECONDS)
        place = accepted.headers["location"]
        assert (await client.delete(place, headers=headers)).status_code == 204
        may_answer.set()
        await asyncio.to_thread(wait_until, lambda: read_key(config, key_id).spent_usd > 1.5 * whole["cost_usd"])
        assert len(endpoint.requests) == 1
        assert (await client.get(place, headers=headers)).status_code == 404
        again = await client.post("/v1/score", json=group("f", "g"), headers=headers)
        assert again.status_code == 200  # the key's budget is known to the cent
    key = read_key(config, key_id)
    assert key.spent_usd == pytest.approx(2 * whole["cost_usd"] + again.json()["cost_usd"])
    assert key.unpriced_groups == 0
    with closing(Database.open(config.database)) as database:
        kept = database.read_now(lambda connection: connection.execute(sa.select(replies)).all())
    assert len(kept) == whole["calls"] + again.json()["calls"]
    assert MARKER.encode() not in await asyncio.to_thread(Path(config.database).read_bytes)


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


async def test_spans_are_sent_to_where_the_environment_says(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    endpoint.script = [by_content_and_position]
    collector = Collector()
    collector.script = [Answer(b"", headers={"Content-Type": "application/x-protobuf"})]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    try:
        async with serving(config_of(tmp_path, endpoint, otel=True)) as client:
            await client.post("/v1/score", json=group("secret", "b"), headers={"traceparent": TRACEPARENT})
    finally:
        collector.close()
    assert {(call.method, call.path) for call in collector.calls} == {("POST", "/v1/traces")}
    zipped = [call.headers.get("content-encoding") == "gzip" for call in collector.calls]
    sent = [gzip.decompress(call.body) if z else call.body for call, z in zip(collector.calls, zipped, strict=True)]
    (resource,) = (spans for each in sent for spans in ExportTraceServiceRequest.FromString(each).resource_spans)
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "gavel"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == ["chat gpt-5-mini", "chat gpt-5-mini", "judge group"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert b"secret" not in b"".join(sent)
