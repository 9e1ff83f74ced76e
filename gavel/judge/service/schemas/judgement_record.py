"""Judgements as the store takes and gives them: plain values, apart from the database's rows."""

from dataclasses import dataclass
from typing import Literal

from gavel.judge.service.schemas.key_scope import KeyScope
from gavel.judge.service.schemas.score_bodies import FinishedStatus, JudgementOut, PendingOut, PendingStatus, SummaryOut
from gavel.judge.service.schemas.stored_verdict import Verdict

Status = Literal[PendingStatus, FinishedStatus]


@dataclass(frozen=True, slots=True)
class NewJudgement:
    """A request that is to be accepted."""

    id: str
    project: str
    key_id: str
    judge: str
    """The models that will judge, in words."""
    members: int
    payload: bytes
    """The request as JSON."""
    created_at: float
    retain: bool = True
    idempotency_key: str | None = None
    request_hash: str = ""
    """Of the payload, where there is an idempotency key."""
    traceparent: str | None = None
    """W3C trace context that the judgement belongs to."""
    scope: KeyScope | None = None
    """What its key may do."""


@dataclass(frozen=True, slots=True)
class Record:
    """A judgement in the database."""

    id: str
    project: str
    key_id: str
    status: Status
    judge: str
    members: int
    retain: bool
    created_at: float
    finished_at: float | None = None
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    traceparent: str | None = None
    verdict: Verdict | None = None
    """None: not finished, or not read with the record."""

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None

    @property
    def answer(self) -> JudgementOut | PendingOut:
        """What `GET /v1/judgements/{id}` answers."""
        if self.verdict is None or self.finished_at is None:
            status = "running" if self.status == "running" else "queued"
            return PendingOut(id=self.id, status=status, project=self.project, created_at=self.created_at)
        return self.verdict.answer(self.id, self.project, self.created_at, self.finished_at)

    @property
    def summary(self) -> SummaryOut:
        """The judgement in a list."""
        return SummaryOut(
            id=self.id,
            status=self.status,
            project=self.project,
            judge=self.judge,
            members=self.members,
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost_usd=self.cost_usd,
            created_at=self.created_at,
            finished_at=self.finished_at,
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a request."""

    record: Record
    is_new: bool
    """False: the idempotency key is that of this earlier request."""


@dataclass(frozen=True, slots=True)
class LeasedWork:
    """A judgement that this process is to make."""

    record: Record
    payload: bytes
    """The request as JSON."""
    leases: int
    """How often a process has begun it, this time included."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which judgements a list shows."""

    projects: frozenset[str] | None = None
    """None = all."""
    statuses: frozenset[str] = frozenset()
    """Empty = all."""
    judge: str | None = None
    since: float | None = None
    """Unix seconds, the first that is shown."""
    until: float | None = None
    """Unix seconds, the first that is not shown."""
    before: str | None = None
    """Only those with a lower id: the `next` of the page before."""
    limit: int = 50
