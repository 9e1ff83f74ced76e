"""Spans of calls: what they say of a request, and what they keep to themselves."""

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gavel.llm.client import Client, traced_calls
from tests.endpoint import Endpoint, fails, says

PROMPT = [{"role": "user", "content": "a secret question"}]
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


class Spans:
    """A tracer whose spans are kept."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._kept.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


async def test_a_request_has_a_span_after_the_conventions(endpoint: Endpoint, spans: Spans):
    endpoint.script = [lambda _: says("a secret answer", USAGE)]
    with traced_calls(spans.tracer):
        await asyncio.create_task(Client("openai/judge", endpoint.params).ask(PROMPT, SCHEMA))
    (span,) = spans.all
    assert (span.name, span.kind, span.status.status_code) == ("chat judge", SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "judge",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
    }
    assert "secret" not in span.to_json()


async def test_every_attempt_has_one_and_an_error_is_told_by_its_kind(endpoint: Endpoint, spans: Spans):
    endpoint.script = [fails(500, "a secret message"), lambda _: says("hi", USAGE)]
    with traced_calls(spans.tracer):
        await Client("openai/judge", endpoint.params).ask(PROMPT, SCHEMA)
    failed, answered = spans.all
    assert (failed.status.status_code, dict(failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "500")
    assert (failed.status.description, failed.events) == (None, ())
    assert answered.status.status_code is StatusCode.UNSET
    assert "secret" not in failed.to_json()
