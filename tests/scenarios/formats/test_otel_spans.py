"""Spans in OTLP's JSON form: what OpenTelemetry's own messages take, and what they hold of an attempt."""

import base64
import json
import socket
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gavel.scenarios.formats.exported import Losses
from gavel.scenarios.formats.otel import OtlpEndpoint, OtlpError, requests
from gavel.scenarios.trajectory import Trajectory
from tests.fake_server import Answer, Call, FakeServer
from tests.scenarios.formats.attempts import PIXEL, stored, whole

NOW = 1_700_000_000_000_000_000


def spans(trajectory: Trajectory, losses: Losses | None = None) -> list[Any]:
    """The spans of an attempt, as protobuf reads them."""
    (request,) = requests(stored(trajectory), "desk", losses or Losses(), NOW)
    return parsed(request)


def parsed(request: dict[str, Any]) -> list[Any]:
    """OTLP's JSON writes ids as hexadecimal digits, protobuf's own as base64; all else is the same."""
    given = json.loads(json.dumps(request, allow_nan=False))
    (resource,) = given["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    for span in scope["spans"]:
        for name, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
            if name in span:
                raw = bytes.fromhex(span[name])
                assert len(raw) == size
                span[name] = base64.b64encode(raw).decode()
    found = ParseDict(given, ExportTraceServiceRequest())
    return list(found.resource_spans[0].scope_spans[0].spans)


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


def test_an_attempt_is_a_trace_of_agents_turns_and_tools():
    found = spans(whole())
    assert [span.name for span in found] == [
        "invoke_agent clerk",
        "chat desk",
        "execute_tool get_order",
        "chat desk",
        "invoke_agent searcher",
        "chat desk",
    ]
    root, first, tool, *_ = found
    assert [span.parent_span_id for span in found] == [b"", *[root.span_id] * 4, found[4].span_id]
    assert len({span.span_id for span in found}) == 6
    assert len({span.trace_id for span in found}) == 1
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in found)
    assert root.start_time_unix_nano > NOW
    assert root.end_time_unix_nano > found[-1].end_time_unix_nano
    assert attributes(tool)["gen_ai.tool.call.result"] == "order A1"
    assert attributes(tool)["gen_ai.tool.call.id"] == "c1"
    assert first.kind == 3


def test_messages_have_the_conventions_form():
    root, first, _, last, *_ = map(attributes, spans(whole()))
    assert json.loads(root["gen_ai.system_instructions"]) == [{"type": "text", "content": "You run the desk."}]
    assert json.loads(first["gen_ai.tool.definitions"])[0]["function"]["name"] == "get_order"
    assert json.loads(first["gen_ai.input.messages"]) == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "See this."},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PIXEL.partition(",")[2]},
            ],
        }
    ]
    (said,) = json.loads(first["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "tool_call", "id": "c1", "name": "get_order", "arguments": {"id": "A1"}}]
    assert [each.string_value for each in first["gen_ai.response.finish_reasons"].values] == ["tool_call"]
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (3, 2)
    assert [each.double_value for each in first["gavel.logprobs"].values] == [-0.1, -0.2]
    history = json.loads(last["gen_ai.input.messages"])
    assert history[-1]["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "order A1"}]


class Collector(FakeServer):
    """Answers by the script; the last answer goes on for ever."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.script = [Answer({})]
        super().__init__()

    def respond(self, call: Call) -> Answer:
        self.calls.append(call)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@pytest.fixture
def collector():
    server = Collector()
    yield server
    server.close()


def send(address: str) -> None:
    with OtlpEndpoint(address) as endpoint:
        endpoint.send({"resourceSpans": []})


def test_spans_go_to_the_standard_path_with_the_headers_of_the_environment(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=a%20key,team=desk")
    send(collector.url)
    send(f"{collector.url}/otel/v1/traces")
    first, second = collector.calls
    assert (first.method, first.path, second.path) == ("POST", "/v1/traces", "/otel/v1/traces")
    assert first.headers["content-type"] == "application/json"
    assert (first.headers["x-api-key"], first.headers["team"]) == ("a key", "desk")
    assert first.json == {"resourceSpans": []}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer({}, 503, {"Retry-After": "0"}), "answered 503"),
        (Answer({"message": "no\nkey"}, 401), "answered 401"),
        (Answer(b"too large", 413), "answered 413: too large"),
        (Answer({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}}), "refused spans: too old"),
    ],
)
def test_a_collector_that_does_not_take_spans_is_told_in_a_sentence(collector, monkeypatch, answer, told):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=secret-key")
    collector.script = [answer]
    with pytest.raises(OtlpError, match=told) as error:
        send(collector.url)
    assert "secret-key" not in json.dumps([error.value.message, error.value.remedy])
    assert len(collector.calls) <= 4


def test_a_collector_that_is_not_there_is_told_without_the_address_s_password():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(OtlpError, match="does not answer") as error:
        send(f"http://user:hunter2@127.0.0.1:{port}")
    assert "hunter2" not in error.value.message


def test_what_nobody_answered_is_kept():
    root = spans(Trajectory(messages_and_choices=[{"role": "user", "content": "Hello?"}]))[0]
    (message,) = json.loads(attributes(root)["gavel.unanswered"])
    assert message["parts"] == [{"type": "text", "content": "Hello?"}]
