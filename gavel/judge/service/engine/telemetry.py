"""Prometheus metrics and OpenTelemetry traces of one process of the service.

    tracing = Tracing.exporting()                          OTLP over HTTP, to where the SDK's environment variables say
    verdict = await tracing.judgement(record, judging)     in a span; those of calls begin in it (gavel/llm/client.py)

Spans have names, numbers and ids, and nothing of a transcript, a rubric or a reply.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from gavel.base.extras import install_line
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.schemas import Record, Verdict
from gavel.llm.client import traced_calls

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SCOPE = "gavel"
_LAST_SECONDS = 5.0
"""Max seconds that a stopping service waits for its last spans to be sent."""


class Tracing:
    """The traces of one process."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_SCOPE, version("gavel-rl"))

    @classmethod
    def exporting(cls) -> "Tracing":
        """Exports spans as OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and related variables say. Raises
        `ServiceError`."""
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

    async def judgement(self, record: Record, judging: Awaitable[Verdict]) -> Verdict:
        """Awaits a group's judging within a span, which is part of its request's trace, if it has one."""
        from opentelemetry.trace import StatusCode, use_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent or ""})
        known = {name: getattr(record, name) for name in ("id", "members", "judge", "project")}
        known["queued_seconds"] = max(time.time() - record.created_at, 0.0)
        own = {f"gavel.judgement.{name}": value for name, value in known.items() if value != ""}
        span = self._tracer.start_span("judge group", parent, attributes=own)
        verdict = None
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False), traced_calls(self._tracer):
                verdict = await judging
            return verdict
        finally:
            if verdict is None or verdict.group is None:
                failure = {} if verdict is None else {"gavel.judgement.status": verdict.status}
                span.set_attributes({"error.type": "judge_failed" if failure else "given_up", **failure})
                span.set_status(StatusCode.ERROR)
            else:
                names = ("status", "calls", "cached_calls", "lost_orders", "cost_usd")
                found = {f"gavel.judgement.{name}": getattr(verdict.group, name) for name in names}
                found["gavel.judgement.scored_members"] = sum(member.score is not None for member in verdict.members)
                found["gen_ai.usage.input_tokens"] = verdict.group.prompt_tokens
                found["gen_ai.usage.output_tokens"] = verdict.group.completion_tokens
                span.set_attributes({name: value for name, value in found.items() if value is not None})
            span.end()

    async def stop(self) -> None:
        """Sends the remaining spans, within some seconds."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, _LAST_SECONDS)


MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The Prometheus client's environment variable for the directory that processes share their counts in."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counters, gauges and histograms in a separate registry; if PROMETHEUS_MULTIPROC_DIR names a directory, as in a
    service of several processes, they cover all processes that share it."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        counter = partial(Counter, namespace=_SCOPE, registry=registry)
        histogram = partial(Histogram, namespace=_SCOPE, buckets=_SECONDS, registry=registry)
        gauge = partial(Gauge, namespace=_SCOPE, registry=registry)
        self._groups = counter("groups", "Groups judged, by status.", ["status"])
        self._calls = counter("judge_calls", "Calls to judge models, by who answered.", ["answered_by"])
        self._tokens = counter("judge_tokens", "Tokens that were paid for.", ["kind"])
        self._cost = counter("judge_cost_usd", "US dollars, where the price is known.")
        self._unpriced = counter("unpriced_groups", "Groups whose cost is not known.")
        self._group_seconds = histogram("group_seconds", "From acceptance to the judgement.")
        by_route = "Requests over HTTP, by route and status."
        self._requests = histogram("request_seconds", by_route, ["route", "status"])
        unfinished = "Groups of all processes that are not judged yet."
        self._unfinished = gauge("unfinished_groups", unfinished, ["status"], multiprocess_mode="livemostrecent")
        waiting = "Requests that wait for a judgement."
        self._waiters = gauge("waiting_requests", waiting, multiprocess_mode="livesum")

    def judged(self, record: Record) -> None:
        """Counts a finished group."""
        self._groups.labels(record.status).inc()
        self._group_seconds.observe(max((record.finished_at or 0.0) - record.created_at, 0.0))
        if record.verdict is None or (group := record.verdict.group) is None:
            return
        self._calls.labels("model").inc(group.calls)
        self._calls.labels("cassette").inc(group.cached_calls)
        self._tokens.labels("prompt").inc(group.prompt_tokens)
        self._tokens.labels("completion").inc(group.completion_tokens)
        self._cost.inc(group.cost_usd or 0.0)
        self._unpriced.inc(group.cost_usd is None)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts an answered request; `route` is its pattern, not its path."""
        self._requests.labels(route, str(status)).observe(seconds)

    def waiting(self, unfinished: Mapping[str, int], waiters: int) -> None:
        """Sets the gauges of unfinished work."""
        for status, groups in unfinished.items():
            self._unfinished.labels(status).set(groups)
        self._waiters.set(waiters)

    def exposition(self) -> tuple[bytes, str]:
        """The text for Prometheus, and its media type."""
        registry = self._registry
        if MULTIPROCESS_VARIABLE in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST
