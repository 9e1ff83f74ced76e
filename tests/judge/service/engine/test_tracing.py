"""Traces of the service: a span for each judgement, those of its calls under it, and no text in any."""

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.engine.telemetry import Tracing
from gavel.judge.service.http.app import create_app
from gavel.judge.service.store.database import Database
from tests.endpoint import Endpoint, fails
from tests.fake_server import Answer, Call, FakeServer
from tests.judge.service.in_process import config_of, group, serving
from tests.judge.service.stub import by_content_and_position
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


async def traced(
    folder: Path, endpoint: Endpoint, *bodies: dict[str, Any], left: str = "", **headers: str
) -> list[ReadableSpan]:
    """The spans of a service that judges these groups, in the order in which they ended.

    `left`: where a judgement is that another process has left to it.
    """
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    config = config_of(folder, endpoint)
    database = Database.open(config.database)
    engine = Engine(config, database, Tracing(provider))
    await engine.start()
    transport = httpx.ASGITransport(create_app(config, engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for body in bodies:
            await client.post("/v1/score", json=body, headers=headers)
        if left:
            assert (await client.get(f"{left}?wait={HANG_SECONDS}")).status_code == 200
    await engine.stop()
    database.close()
    return list(kept.get_finished_spans())


async def test_calls_are_under_their_judgement_and_no_text_is_in_any(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    body = group("secret worth one", "secret worth two", rubric="a secret rubric", project="desk")
    *calls, judgement = await traced(tmp_path, endpoint, body)
    assert [call.name for call in calls] == ["chat gpt-5-mini"] * 2
    assert judgement.name == "judge group"
    assert judgement.parent is None
    assert judgement.context is not None
    assert {call.parent.span_id for call in calls if call.parent} == {judgement.context.span_id}
    attributes = dict(judgement.attributes or {})
    assert attributes.pop("gavel.judgement.id")
    assert float(str(attributes.pop("gavel.judgement.queued_seconds"))) >= 0
    assert attributes == {
        "gavel.judgement.members": 2,
        "gavel.judgement.judge": "openai/gpt-5-mini",
        "gavel.judgement.project": "desk",
        "gavel.judgement.status": "scored",
        "gavel.judgement.scored_members": 2,
        "gavel.judgement.calls": 2,
        "gavel.judgement.cached_calls": 0,
        "gavel.judgement.lost_orders": 0,
        "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 40,
        "gavel.judgement.cost_usd": attributes["gavel.judgement.cost_usd"],
    }
    for span in (*calls, judgement):
        assert "secret" not in span.to_json()
        assert "drawn" not in span.to_json()  # what the judge says


async def test_a_request_s_trace_goes_on_in_its_judgement(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    for span in await traced(tmp_path, endpoint, group("a", "b"), traceparent=TRACEPARENT):
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        if span.name == "judge group":
            assert span.parent is not None
            assert f"{span.parent.span_id:016x}" == PARENT


async def test_it_goes_on_in_another_process(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    database = Database.open(str(tmp_path / "service.sqlite"))
    try:
        config = config_of(tmp_path, endpoint)
        engine = Engine(config, database, Tracing(TracerProvider()))
        engine.worker.reserved = 1000  # only accepts
        app = create_app(config)
        app.state.engine = engine
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            headers = {"traceparent": TRACEPARENT}
            answer = await client.post("/v1/score?wait=false", json=group("a", "b"), headers=headers)
        assert answer.status_code == 202
    finally:
        database.close()
    spans = await traced(tmp_path, endpoint, left=answer.headers["location"])
    assert len(spans) == 3
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}


async def test_a_judge_that_fails_is_an_error_with_a_kind(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [fails(401, "a secret message")]
    *calls, judgement = await traced(tmp_path, endpoint, group("a", "b"))
    assert [str(dict(call.attributes or {})["error.type"]) for call in calls] == ["401"] * len(calls)
    attributes = dict(judgement.attributes or {})
    assert (attributes["error.type"], attributes["gavel.judgement.status"]) == ("judge_failed", "failed")
    assert judgement.status.status_code is StatusCode.ERROR
    assert "secret" not in judgement.to_json()


@pytest.mark.parametrize(
    "header",
    ["x", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE}"],
)
def test_what_is_no_trace_context_begins_a_trace(header: str):
    assert Tracing(TracerProvider()).traceparent(header) is None
    assert Tracing(TracerProvider()).traceparent(TRACEPARENT) == TRACEPARENT


class Collector(FakeServer):
    """Takes spans over OTLP/HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[ExportTraceServiceRequest] = []

    def respond(self, call: Call) -> Answer:
        assert (call.method, call.path) == ("POST", "/v1/traces")
        body = gzip.decompress(call.body) if call.headers.get("content-encoding") == "gzip" else call.body
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        return Answer(b"", headers={"Content-Type": "application/x-protobuf"})


async def test_spans_are_sent_to_where_the_environment_says(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    endpoint.script = [by_content_and_position]
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    try:
        async with serving(config_of(tmp_path, endpoint, otel=True)) as client:
            await client.post("/v1/score", json=group("secret", "b"), headers={"traceparent": TRACEPARENT})
    finally:
        collector.close()
    (resource,) = (spans for request in collector.requests for spans in request.resource_spans)
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "gavel"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == ["chat gpt-5-mini", "chat gpt-5-mini", "judge group"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert "secret" not in json.dumps(str(collector.requests))
