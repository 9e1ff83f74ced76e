"""What the store takes and gives, as plain values: ids, API keys, judgements and groups that wait for members."""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gavel.judge.errors import JudgeError
from gavel.judge.service.errors import ServiceError
from gavel.judge.service.schemas.bodies import (
    FinishedStatus,
    JudgementOut,
    MemberOut,
    OnDeadline,
    PendingOut,
    PendingStatus,
    Project,
    SetInteger,
    SetNumber,
)
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement

HASH_PREFIX = "sha256:"
"""Before a hash where people see it."""
TOKEN_PREFIX = "gavel_"
_ID_BYTES = 6
_SECRET_BYTES = 32


def new_token() -> tuple[str, str]:
    """A key, and the id in it."""
    key_id = secrets.token_hex(_ID_BYTES)
    return f"{TOKEN_PREFIX}{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}", key_id


def key_id_of(token: str) -> str:
    """The id in a token; empty where it is none."""
    return token.removeprefix(TOKEN_PREFIX).partition("_")[0] if token.startswith(TOKEN_PREFIX) else ""


def token_hash(token: str) -> str:
    """Its SHA-256 as hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


class KeyScope(BaseModel):
    """Projects, judges and limits of one API key."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    projects: list[Project] = []
    """Projects that the key may use. Requests that name none are filed under the first one. Default: all."""
    judges: list[str] = []
    """Judge models that may judge for the key. Default: all that the service allows."""
    max_cost_usd: SetNumber | None = Field(default=None, gt=0)
    """US dollars that its judgements may cost in all. The groups that are being judged at the limit are finished; those
    that were accepted and not begun are left unscored, with the reason."""
    requests_per_minute: SetInteger | None = Field(default=None, ge=1)
    """Requests a minute to one process of the service; as many may come at once."""
    concurrent_groups: SetInteger | None = Field(default=None, ge=1)
    """Groups of the key that may be unfinished at once."""


class Verdict(BaseModel):
    """What a judge said of a group, or why it could not be asked."""

    ids: list[str]
    """Ids of the members, in the request's order."""
    members: list[Judgement]
    group: GroupJudgement | None = None
    """None: the judge could not be asked."""
    problem: str | None = None
    remedy: str = ""
    questions: list[str] = []
    """Keys of further replies: those to questions that no vote was read from."""

    @classmethod
    def of(cls, ids: list[str], judged: TrajectoryGroup) -> "Verdict":
        """The verdict of a judged group."""
        members = [trajectory.judgement or Judgement(reason="not judged") for trajectory in judged.trajectories]
        return cls(ids=ids, members=members, group=judged.judgement)

    @classmethod
    def failed(cls, ids: list[str], error: JudgeError) -> "Verdict":
        """The verdict of a group whose judge could not be asked."""
        members = [Judgement(reason=error.message) for _ in ids]
        return cls(ids=ids, members=members, problem=error.message, remedy=error.remedy)

    @classmethod
    def unscored(cls, ids: list[str], reason: str) -> "Verdict":
        """The verdict of a group which is not judged."""
        group = GroupJudgement(status="unscored", reason=reason)
        return cls(ids=ids, members=[Judgement(reason=reason) for _ in ids], group=group)

    @property
    def status(self) -> FinishedStatus:
        return "failed" if self.group is None else self.group.status

    @property
    def reply_keys(self) -> set[str]:
        """Keys of the stored replies to what was asked for it."""
        read = {vote.reply_key for member in self.members for vote in member.votes if vote.reply_key}
        return read.union(self.questions)

    def with_questions(self, keys: Collection[str]) -> "Verdict":
        """With all questions that were asked for it."""
        further = sorted(set(keys) - self.reply_keys)
        return self.model_copy(update={"questions": further}) if further else self

    def bare(self) -> "Verdict":
        """Scores and costs alone, without what may quote a transcript: explanations and votes."""
        members = [
            Judgement(
                score=member.score,
                standard_error=member.standard_error,
                degrees_of_freedom=member.degrees_of_freedom,
                flags=member.flags,
                reason=member.reason and "erased",
            )
            for member in self.members
        ]
        group = self.group and self.group.model_copy(
            update={"settings": None, "warnings": [], "reason": self.group.reason and "erased"}
        )
        return self.model_copy(
            update={"members": members, "group": group, "problem": self.problem and "erased", "questions": []}
        )

    def answer(self, judgement: str, project: str, created_at: float, finished_at: float) -> JudgementOut:
        """The answer over HTTP."""
        whole = self.group or GroupJudgement(status="unscored", reason=self.problem)
        shared = whole.model_dump(include=JudgementOut.model_fields.keys() - {"members"})
        members = [
            MemberOut(id=name, **member.model_dump(include=MemberOut.model_fields.keys() - {"id"}))
            for name, member in zip(self.ids, self.members, strict=True)
        ]
        own: dict[str, Any] = {"id": judgement, "status": self.status, "scores": [member.score for member in members]}
        times: dict[str, Any] = {"project": project, "created_at": created_at, "finished_at": finished_at}
        return JudgementOut(members=members, **{**shared, **own, **times})


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
    """Hash of the payload, where there is an idempotency key."""
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
class NewMember:
    """A member that is to be accepted, and the group that it names."""

    key_id: str
    project: str
    group: str
    """Name of the group."""
    member: str
    payload: bytes
    """The trajectory as JSON, compressed."""
    size: int
    """Bytes of the trajectory."""
    content_hash: str
    expected: int
    options: bytes
    """How the group is judged, as JSON."""
    settings_hash: str
    """Hash of all that is the same in the members of a group."""
    judge: str
    retain: bool
    deadline_seconds: float
    on_deadline: OnDeadline
    max_size: int
    """Bytes that the members of a group may have together."""
    no_more_groups: ServiceError | None = None
    """Why it may not be the first of a group; members of groups that are there are taken all the same."""
    scope: KeyScope | None = None
    """What its key may do, which is looked at as it begins a group."""
    begins_rounds: bool = False
    """Whether a closed group's name begins another group, instead of being refused."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group in the database."""

    id: str
    name: str
    project: str
    key_id: str
    expected: int
    arrived: int
    deadline_at: float
    closed_at: float | None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None
