"""A file is there when it is whole, nothing is written over, and every format is written with what it lost.

Spans in OTLP's JSON form: what OpenTelemetry's own messages take, and what they hold of an attempt.
"""

import base64
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gavel.scenarios.formats.export import ExportError, export_file
from gavel.scenarios.formats.exported import TOO_DEEP, Losses
from gavel.scenarios.formats.otel import OtlpEndpoint, OtlpError, requests
from gavel.scenarios.trajectory import Trajectory
from tests.fake_server import Answer, Call, FakeServer
from tests.scenarios.formats.attempts import PIXEL, both, stored, whole


@pytest.mark.parametrize(("form", "name"), [("otel", "o.jsonl"), ("agenttraj", "t.jsonl")])
def test_every_format_is_written_whole_as_strict_json_or_there_is_no_file(tmp_path: Path, form: str, name: str):
    def damaged():
        yield from stored(whole())
        raise ExportError("the next group is damaged", "Restore it.")

    with pytest.raises(ExportError, match="damaged"):
        export_file(damaged(), form, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    told = export_file(both(), form, tmp_path / name)
    assert "wrote 2 attempts of 1 group as" in told.summary
    assert any("lone surrogate" in note for note in told.notes)
    for line in (tmp_path / name).read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_is_written_over_or_into_a_file(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        export_file(both(), "otel", tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == "mine"
    with pytest.raises(ExportError, match="cannot be written"):
        export_file(both(), "otel", tmp_path / "a.jsonl" / "b.jsonl")


@pytest.mark.parametrize(("form", "out"), [("agenttraj", "a.json"), ("otel", "a"), ("dpo", "http://x")])
def test_a_name_that_the_format_does_not_have_is_refused(tmp_path: Path, form, out):
    with pytest.raises(ExportError) as error:
        export_file(both(), form, out if out.startswith("http") else tmp_path / out)
    assert "-o" in error.value.remedy
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=25)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4), max_leaves=10))
def test_a_plain_value_stays_as_it_is(value):
    losses = Losses()
    assert losses.plain(value) == value
    assert losses.notes() == []


def test_a_value_nested_too_deep_for_a_parser_is_text():
    value: list = []
    for _ in range(5000):
        value = [value]
    losses = Losses()
    json.loads(json.dumps(losses.plain(value)))
    assert losses.notes() == [f"1 × {TOO_DEEP}"]


NOW = 1_700_000_000_000_000_000


def spans(trajectory: Trajectory) -> list[Any]:
    """The spans of an attempt, as protobuf reads them: OTLP's JSON writes ids as hexadecimal digits, protobuf's own as
    base64; all else is the same."""
    (request,) = requests(stored(trajectory), "desk", Losses(), NOW)
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
    clerk, searcher = ["chat desk", "execute_tool get_order", "chat desk"], ["invoke_agent searcher", "chat desk"]
    assert [span.name for span in found] == ["invoke_agent clerk", *clerk, *searcher]
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
    picture = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PIXEL.partition(",")[2]}
    asked = {"role": "user", "parts": [{"type": "text", "content": "See this."}, picture]}
    assert json.loads(first["gen_ai.input.messages"]) == [asked]
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


def test_spans_of_a_file_go_to_a_collector(collector: Collector):
    told = export_file(both(), "otel", collector.url)
    assert told.summary.endswith(f"as OpenTelemetry spans to {collector.url}")
    assert len(collector.calls) == 2
