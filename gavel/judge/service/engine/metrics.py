"""What a process of the service counts, for Prometheus."""

import os
from collections.abc import Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from gavel.judge.service.schemas.records import Record

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The Prometheus client's environment variable for the directory that processes count in."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counters, gauges and histograms in a registry of their own; where PROMETHEUS_MULTIPROC_DIR names a directory, as
    among several processes of one service, they are those of all that share it."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"gavel_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, *labels: str) -> Histogram:
            return Histogram(f"gavel_{name}_seconds", help, labels, buckets=_SECONDS, registry=registry)

        def gauge(name: str, help: str, mode: Literal["livemostrecent", "livesum"], *labels: str) -> Gauge:
            return Gauge(f"gavel_{name}", help, labels, registry=registry, multiprocess_mode=mode)

        self._groups = counter("groups", "Groups judged, by status.", "status")
        self._unscored = counter("unscored_members", "Members without a score, by the status of their group.", "status")
        self._calls = counter("judge_calls", "Calls to judge models, by who answered.", "answered_by")
        self._tokens = counter("judge_tokens", "Tokens that were paid for.", "kind")
        self._cost = counter("judge_cost_usd", "US dollars, where the price is known.")
        self._unpriced = counter("unpriced_groups", "Groups whose cost is not known.")
        self._judging = histogram("judging", "From the beginning of judging to its end.")
        self._group_seconds = histogram("group", "From acceptance to the judgement.")
        self._requests = histogram("request", "Requests over HTTP, by route and status.", "route", "status")
        unfinished = "Groups of all processes that are not judged yet."
        self._unfinished = gauge("unfinished_groups", unfinished, "livemostrecent", "status")
        self._waiters = gauge("waiting_requests", "Requests that wait for a judgement.", "livesum")

    def judged(self, record: Record) -> None:
        """A group is finished."""
        self._groups.labels(record.status).inc()
        if record.finished_at is not None:
            self._group_seconds.observe(max(record.finished_at - record.created_at, 0))
        verdict = record.verdict
        if verdict is None:
            return
        self._unscored.labels(record.status).inc(sum(member.score is None for member in verdict.members))
        if (group := verdict.group) is None:
            return
        self._judging.observe(group.seconds)
        self._calls.labels("model").inc(group.calls)
        self._calls.labels("cassette").inc(group.cached_calls)
        self._tokens.labels("prompt").inc(group.prompt_tokens)
        self._tokens.labels("completion").inc(group.completion_tokens)
        if group.cost_usd is None:
            self._unpriced.inc()
        else:
            self._cost.inc(group.cost_usd)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request was answered; `route` is its pattern, not its path."""
        self._requests.labels(route, str(status)).observe(seconds)

    def waiting(self, unfinished: Mapping[str, int], waiters: int) -> None:
        """What is unfinished now."""
        for status, groups in unfinished.items():
            self._unfinished.labels(status).set(groups)
        self._waiters.set(waiters)

    def exposition(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its media type."""
        registry = self._registry
        if MULTIPROCESS_VARIABLE in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST
