"""OpenTelemetry traces: a span for each judgement, and under it one for each call to a judge model.

    tracing = Tracing.exporting()              OTLP over HTTP, to where the SDK's environment variables say
    with tracing.judgement(record) as span:    spans of calls begin in here (gavel/llm/client.py)
        span.verdict = await …

Spans have names, numbers and ids, and nothing of a transcript, a rubric or a reply. Without a provider there are none.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from gavel.base.extras import install_line
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.schemas.records import Record, Verdict
from gavel.llm.client import traced_calls

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SCOPE = "gavel"
_LAST_SECONDS = 5.0
"""That a stopping service waits until its last spans are sent."""


@dataclass(slots=True)
class JudgementSpan:
    """The span of a judgement that is being made."""

    verdict: Verdict | None = None
    """What came of it; None = it was given up."""


class Tracing:
    """The traces of one process."""

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer(_SCOPE, version("gavel-rl"))

    @classmethod
    def exporting(cls) -> "Tracing":
        """Sends spans as OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and their kind say. Raises `ServiceError`."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ServiceError(
                f"traces need {error.name}, which is not installed.",
                f"{install_line('otel')}, or set otel = false.",
            ) from error
        named = Resource.create()
        if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            named = named.merge(Resource({SERVICE_NAME: _SCOPE}))
        provider = TracerProvider(resource=named, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def traceparent(self, header: str | None) -> str | None:
        """The trace context in a request's `traceparent`, where spans are made and it is one."""
        if not (self.is_on and header):
            return None
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        sent: dict[str, str] = {}
        propagator = TraceContextTextMapPropagator()
        propagator.inject(sent, propagator.extract({"traceparent": header}))
        return sent.get("traceparent")

    @contextlib.contextmanager
    def judgement(self, record: Record) -> Generator[JudgementSpan]:
        """The span of a group's judging; a part of its request's trace, where there is one."""
        told = JudgementSpan()
        if self._tracer is None:
            yield told
            return
        from opentelemetry.trace import StatusCode, use_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent or ""})
        span = self._tracer.start_span("judge group", parent, attributes=_of_record(record))
        try:
            with (
                use_span(span, record_exception=False, set_status_on_exception=False),
                traced_calls(self._tracer),
            ):
                yield told
        finally:
            verdict = told.verdict
            if verdict is None or verdict.group is None:
                span.set_attribute("error.type", "given_up" if verdict is None else "judge_failed")
                span.set_status(StatusCode.ERROR)
            if verdict is not None:
                span.set_attributes(_of_verdict(verdict))
            span.end()

    async def stop(self) -> None:
        """Sends what is left, within some seconds."""
        if self._provider is None:
            return
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, _LAST_SECONDS)


def _of_record(record: Record) -> dict[str, Any]:
    known: dict[str, Any] = {"id": record.id, "members": record.members, "judge": record.judge}
    known["queued_seconds"] = max(time.time() - record.created_at, 0.0)
    if record.project:
        known["project"] = record.project
    return {f"gavel.judgement.{name}": value for name, value in known.items()}


def _of_verdict(verdict: Verdict) -> dict[str, Any]:
    known: dict[str, Any] = {"gavel.judgement.status": verdict.status}
    if (group := verdict.group) is None:
        return known
    known["gavel.judgement.scored_members"] = sum(member.score is not None for member in verdict.members)
    known |= {f"gavel.judgement.{name}": getattr(group, name) for name in ("calls", "cached_calls", "lost_orders")}
    known |= {"gen_ai.usage.input_tokens": group.prompt_tokens, "gen_ai.usage.output_tokens": group.completion_tokens}
    return known if group.cost_usd is None else known | {"gavel.judgement.cost_usd": group.cost_usd}
