"""Plain values of the store: ids, API keys, judgements and open groups."""

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
"""Prefix of a hash shown to people."""
TOKEN_PREFIX = "gavel_"
_ID_BYTES = 6
_SECRET_BYTES = 32


def new_token() -> tuple[str, str]:
    """Creates a key; returns it and the id in it."""
    key_id = secrets.token_hex(_ID_BYTES)
    return f"{TOKEN_PREFIX}{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}", key_id


def key_id_of(token: str) -> str:
    """The id in a token; empty if it is invalid."""
    return token.removeprefix(TOKEN_PREFIX).partition("_")[0] if token.startswith(TOKEN_PREFIX) else ""


def token_hash(token: str) -> str:
    """The token's SHA-256 as hexadecimal digits."""
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
    """A group's outcome: its judgement, or the reason why the judge failed."""

    ids: list[str]
    """Ids of the members, in the request's order."""
    members: list[Judgement]
    group: GroupJudgement | None = None
    """None: the judge could not be called."""
    problem: str | None = None
    remedy: str = ""
    questions: list[str] = []
    """Keys of replies that no vote was read from."""

    @classmethod
    def of(cls, ids: list[str], judged: TrajectoryGroup) -> "Verdict":
        """The verdict of a judged group."""
        members = [trajectory.judgement or Judgement(reason="not judged") for trajectory in judged.trajectories]
        return cls(ids=ids, members=members, group=judged.judgement)

    @classmethod
    def failed(cls, ids: list[str], error: JudgeError) -> "Verdict":
        """The verdict of a group whose judge could not be called."""
        members = [Judgement(reason=error.message) for _ in ids]
        return cls(ids=ids, members=members, problem=error.message, remedy=error.remedy)

    @classmethod
    def unscored(cls, ids: list[str], reason: str) -> "Verdict":
        """The verdict of a group that is not judged."""
        group = GroupJudgement(status="unscored", reason=reason)
        return cls(ids=ids, members=[Judgement(reason=reason) for _ in ids], group=group)

    @property
    def status(self) -> FinishedStatus:
        return "failed" if self.group is None else self.group.status

    @property
    def reply_keys(self) -> set[str]:
        """Keys of all stored replies for this group."""
        read = {vote.reply_key for member in self.members for vote in member.votes if vote.reply_key}
        return read.union(self.questions)

    def with_questions(self, keys: Collection[str]) -> "Verdict":
        """Adds the keys of all questions asked for it."""
        further = sorted(set(keys) - self.reply_keys)
        return self.model_copy(update={"questions": further}) if further else self

    def bare(self) -> "Verdict":
        """The verdict reduced to scores and costs: explanations and votes may quote a transcript."""
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
        """The response over HTTP."""
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
    """None: unfinished, or not loaded with the record."""

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None

    @property
    def answer(self) -> JudgementOut | PendingOut:
        """The response of `GET /v1/judgements/{id}`."""
        if self.verdict is None or self.finished_at is None:
            status = "running" if self.status == "running" else "queued"
            return PendingOut(id=self.id, status=status, project=self.project, created_at=self.created_at)
        return self.verdict.answer(self.id, self.project, self.created_at, self.finished_at)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of accepting a request."""

    record: Record
    is_new: bool
    """False: the idempotency key belongs to this earlier request."""


@dataclass(frozen=True, slots=True)
class LeasedWork:
    """A judgement that this process has to make."""

    record: Record
    payload: bytes
    """The request as JSON."""
    leases: int
    """Number of times that a process started it, including this one."""


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member to be accepted, and the name of its group."""

    key_id: str
    project: str
    group: str
    member: str
    payload: bytes
    """The trajectory as JSON, compressed."""
    size: int
    """Bytes of the uncompressed trajectory."""
    content_hash: str
    expected: int
    options: bytes
    """Judging options of the group, as JSON."""
    settings_hash: str
    """Hash of all options that members of a group must share."""
    judge: str
    retain: bool
    deadline_seconds: float
    on_deadline: OnDeadline
    max_size: int
    """Max bytes of all members of a group together."""
    no_more_groups: ServiceError | None = None
    """Error for a member that would start a group; members of existing groups are accepted anyway."""
    scope: KeyScope | None = None
    """Scope of its key, checked when it starts a group."""
    begins_rounds: bool = False
    """Whether reusing a closed group's name starts another group instead of being rejected."""


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
