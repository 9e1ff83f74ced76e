"""A collector on loopback: what it is sent, and what is said when it does not take it."""

import json
import socket

import pytest

from gavel.scenarios.formats.otel import OtlpEndpoint, OtlpError
from tests.fake_server import Answer, Call, FakeServer


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


def test_a_busy_collector_is_asked_again(collector):
    collector.script = [Answer({}, 503, {"Retry-After": "0"}), Answer({}, 429, {"Retry-After": "0"}), Answer({})]
    send(collector.url)
    assert len(collector.calls) == 3


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
