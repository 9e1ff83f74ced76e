"""Plain data of the service: bodies of requests and responses, and records as the store takes and gives them.

    ScoreRequest.model_validate_json(body)

Other wires are translated into these bodies. Numbers and truth values are not coerced: pydantic alone would convert
`true` to 1, and `"3"` to 3.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    StringConstraints,
    model_validator,
)
from pydantic_core import to_json

from gavel.base.errors import GavelError
from gavel.judge.panel.modes import ModeName
from gavel.judge.service.errors import Problem, ServiceError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, GroupStatus, Judgement
from gavel.scenarios.trajectory import History, Trajectory, as_item
from gavel.scenarios.truth import KEY, read_truth

_T = TypeVar("_T")


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted here, not true or false")
    return value


def _no_other_kind(value: object) -> object:
    if isinstance(value, str | bytes):
        raise ValueError("a number is wanted here, not a text")
    return _no_truth_value(value)


Integer = Annotated[int, BeforeValidator(_no_other_kind)]
Number = Annotated[float, BeforeValidator(_no_other_kind), AllowInfNan(False)]
Boolean = Annotated[bool, Strict()]
SetInteger = Annotated[int, BeforeValidator(_no_truth_value)]
"""Integer setting, which the environment gives as text."""
SetNumber = Annotated[float, BeforeValidator(_no_truth_value), AllowInfNan(False)]


class Described(BaseModel):
    """A model whose fields are described below them."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class StrictModel(Described):
    """What users send or set: a name that is no field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ID_PATTERN = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
PendingStatus = Literal["queued", "running"]
FinishedStatus = Literal[GroupStatus, "failed"]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Project = Annotated[str, StringConstraints(max_length=200, pattern=r"^[\w.-]*$")]


def _has_a_role(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str) and not isinstance(message.get("type"), str):
        raise ValueError(
            'a message is an object with a "role", as in OpenAI\'s chat API, or an item with a "type", as in its '
            "Responses API"
        )
    return message


ChatMessage = Annotated[dict[str, JsonValue], AfterValidator(_has_a_role)]


_TEXT = 1 << 20
"""Max characters of a rubric or a reference, which every prompt of a group repeats; max bytes of all criteria."""
_TOOLS = 4 << 20


def _at_most(size: int) -> AfterValidator:
    def check(value: _T) -> _T:
        if len(to_json(value)) > size:
            raise ValueError(f"at most {size:,} bytes of JSON are taken here")
        return value

    return AfterValidator(check)


Tools = Annotated[list[dict[str, JsonValue]], _at_most(_TOOLS)]


class HistoryIn(StrictModel):
    """A further conversation of the same attempt, such as a sub-agent's."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: Tools | None = None
    """Schemas of the tools that the agent had, as OpenAI, Anthropic, Gemini or MCP write them."""
    agent: Name | None = None
    """Who acts in `messages`, where the attempt has several agents; the judge is shown the name."""


class ConversationIn(HistoryIn):
    """What an agent did."""

    messages: list[ChatMessage]
    """The conversation as OpenAI chat messages or Responses items, or in the form of Anthropic or Gemini; tool calls
    and tool results included."""
    histories: list[HistoryIn] = Field(default_factory=list[HistoryIn])
    """Further conversations of the same attempt."""
    status: Literal["finished", "truncated", "failed"] = "finished"
    """A failed attempt is unscored, whatever its messages."""
    status_reason: str | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Kept with the trajectory; not shown to the judge."""

    @model_validator(mode="after")
    def _something_to_judge(self) -> "ConversationIn":
        if not self.messages and not self.histories and self.status != "failed":
            raise ValueError('a trajectory needs messages; leave it out, or send it with the status "failed"')
        return self


_BLANK = Trajectory.model_construct()


class TrajectoryIn(ConversationIn):
    """One attempt at the task."""

    id: Name | None = None
    """Name of the member in the answer, unique in the group. Default: its index, from 0."""

    def trajectory(self) -> Trajectory:
        """The member to judge. Its fields are not validated again, which would take as long as parsing them."""
        fields = {name: getattr(self, name) for name in ("tools", "status", "status_reason", "metadata", "agent")}
        histories = [
            History.model_construct(messages_and_choices=[*map(as_item, x.messages)], tools=x.tools, agent=x.agent)
            for x in self.histories
        ]
        fields |= {"messages_and_choices": [*map(as_item, self.messages)], "additional_histories": histories}
        return _BLANK.model_copy(update={**fields, "metrics": {}, "logs": []})


class CriterionIn(StrictModel):
    """One thing that the judge scores."""

    name: Name
    text: str = Field(min_length=1)
    """What is good, and what is bad."""
    weight: Number = Field(default=1.0, ge=0)


class JudgingOptions(StrictModel):
    """How a group is judged; what is left out is as the service is set."""

    rubric: str | None = Field(default=None, pattern=r"\S", max_length=_TEXT)
    """What good work is."""
    preset: Name | None = None
    """Name of a rubric in the service's settings, instead of `rubric`."""
    criteria: Annotated[list[str | CriterionIn], _at_most(_TEXT)] | None = Field(default=None, min_length=1)
    """Things to score one by one; the score is their weighted mean."""
    reference: str | None = Field(default=None, min_length=1, max_length=_TEXT)
    """A right answer or facts, shown to the judge only."""
    judge: Name | None = None
    """Judge model; one of those that the service allows."""
    orders: Integer | None = Field(default=None, ge=1)
    """Orders in which the judge sees the group."""
    mode: ModeName | None = None
    """How members are compared."""
    project: Project = ""
    """What the judgement is filed under."""


class ScoreRequest(JudgingOptions):
    """A group of attempts at the same task, to be scored relative to each other."""

    trajectories: list[TrajectoryIn] = Field(min_length=1)

    @property
    def ids(self) -> list[str]:
        """The members' names, in order."""
        return [str(index) if member.id is None else member.id for index, member in enumerate(self.trajectories)]

    def group(self, preset: str | None = None) -> TrajectoryGroup:
        """The group to judge; `preset` is the text of the rubric that it names. Raises `JudgeError` for invalid
        criteria."""
        criteria = [one if isinstance(one, str) else one.model_dump() for one in self.criteria or ()]
        truth = read_truth({"rubric": self.rubric or preset, "reference": self.reference, "criteria": criteria})
        members = [member.trajectory() for member in self.trajectories]
        return TrajectoryGroup(members, metadata={KEY: truth.dump()} if truth else {})


class MemberOut(Described):
    """The score of one member."""

    id: str
    score: float | None
    """From 0 to 1; null = not scored, and `reason` says why."""
    standard_error: float | None = None
    explanation: str = ""
    flags: list[str] = []
    """What rules found in the transcript, such as "addresses the judge"."""
    reason: str | None = None


def scored_fields(member: Judgement) -> dict[str, Any]:
    """What is answered about a member, by the names of `MemberOut`."""
    return {name: getattr(member, name) for name in MemberOut.model_fields if name != "id"}


class JudgementOut(Described):
    """A finished judgement."""

    id: str
    status: FinishedStatus
    """scored; partial, unscored (why stands in `reason`); degenerate (all members are the same); failed (the judge
    could not be asked)."""
    reason: str | None = None
    scores: list[float | None]
    """In the order of the request's trajectories; null = not scored."""
    members: list[MemberOut]
    calls: int = 0
    """Calls to judge models that were made and paid for."""
    cached_calls: int = 0
    """Calls that stored replies answered."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """US dollars; null = not known."""
    models: list[str] = []
    warnings: list[str] = []
    project: str = ""
    created_at: float
    """Unix seconds."""
    finished_at: float


class PendingOut(Described):
    """A judgement that is not finished."""

    id: str
    status: PendingStatus
    project: str = ""
    created_at: float


class SummaryOut(BaseModel):
    """A judgement in a list."""

    id: str
    status: PendingStatus | FinishedStatus
    project: str
    judge: str
    members: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    created_at: float
    finished_at: float | None


_MAX_TIME = 2**40
_UNFINISHED: tuple[str, ...] = get_args(PendingStatus)
_FINISHED: tuple[str, ...] = (*get_args(GroupStatus), "failed")
STATUSES = {
    "unfinished": _UNFINISHED,
    "finished": _FINISHED,
    **{status: (status,) for status in (*_UNFINISHED, *_FINISHED)},
}
"""Status filters of a list, with the statuses that each stands for."""
_Text = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")]  # PostgreSQL has no text with a NUL


class PageQuery(StrictModel):
    """Which judgements a list shows; what is left out shows all."""

    project: _Text | None = None
    status: list[PendingStatus | FinishedStatus | Literal["finished", "unfinished"]] | None = None
    judge: _Text | None = Field(default=None, description="As in the list.")
    since: float | None = Field(default=None, ge=0, le=_MAX_TIME, description="Unix seconds.")
    until: float | None = Field(default=None, ge=0, le=_MAX_TIME, description="Unix seconds. Exclusive.")
    before: str | None = Field(default=None, pattern=ID_PATTERN, description="`next` of another page.")
    limit: int = Field(default=50, ge=1, le=200)


class PageOut(Described):
    """Judgements, newest first."""

    judgements: list[SummaryOut]
    next: str | None
    """`before` of the next page; null on the last."""


NAME_PATTERN = r"^(?:\.{0,2}[^/\x00.][^/\x00]*|\.{3}[^/\x00]*)$"
"""Pattern of names in a path: no slash, and neither "." nor "..", which clients resolve."""
PathName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN)]
OnDeadline = Literal["judge", "unscored"]


class MemberRequest(JudgingOptions, ConversationIn):
    """One attempt at the task of a group; how the group is judged is the same in all its members."""

    expected: Integer = Field(ge=1)
    """Members of the whole group."""
    id: PathName
    """Name of this member in its group. The same body again gives the same answer."""
    deadline_seconds: Number | None = Field(default=None, gt=0, le=86_400)
    """Seconds from the group's first member until it is closed. Default: the service's limits.deadline_seconds."""
    on_deadline: OnDeadline = "judge"
    """What becomes of a group that is not complete at its deadline: those that came are judged, or none is."""
    wait: Boolean = True
    """False: answer 202 at once; ask for the score later."""

    @property
    def trajectory_in(self) -> TrajectoryIn:
        """The member in the form of `POST /v1/score`."""
        return TrajectoryIn.model_construct(
            id=self.id, **{name: getattr(self, name) for name in ConversationIn.model_fields}
        )

    @property
    def options(self) -> JudgingOptions:
        """The judging options of its group."""
        return JudgingOptions.model_construct(**{name: getattr(self, name) for name in JudgingOptions.model_fields})


class MemberAnswer(MemberOut):
    """The score of one member of a judged group."""

    group: str
    judgement: str
    """Id of the group's judgement: `GET /v1/judgements/{id}` has all its members."""
    status: FinishedStatus
    """Status of the group, as in `POST /v1/score`."""
    expected: int
    arrived: int
    """Members that were judged together; fewer than expected after a deadline."""


class MemberPending(Described):
    """A member of a group that is not judged yet."""

    group: str
    id: str
    judgement: str
    """Id that the group's judgement has, or will have."""
    status: Literal["open", PendingStatus]
    """open: further members are waited for."""
    expected: int
    arrived: int
    deadline_at: float
    """Unix seconds at which an open group is closed."""


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


class KeyScope(StrictModel):
    """Projects, judges and limits of one API key."""

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
    def failed(cls, ids: list[str], error: GavelError) -> "Verdict":
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


Status = Literal["open", PendingStatus, FinishedStatus]


@dataclass(frozen=True, slots=True)
class Record:
    """A judgement in the database."""

    id: str
    project: str
    key_id: str
    status: Status
    judge: str
    members: int
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
    def reason(self) -> str | None:
        """Why not all members are scored."""
        return self.verdict.group.reason if self.verdict and self.verdict.group else None

    @property
    def answer(self) -> JudgementOut | PendingOut:
        """The response of `GET /v1/judgements/{id}`."""
        own: dict[str, Any] = {name: getattr(self, name) for name in ("id", "status", "project", "created_at")}
        if (verdict := self.verdict) is None:
            return PendingOut(**own)
        whole = verdict.group or GroupJudgement(status="unscored", reason=verdict.problem)
        shared = whole.model_dump(include=JudgementOut.model_fields.keys() - {"members"})
        members = [
            MemberOut(id=name, **scored_fields(member))
            for name, member in zip(verdict.ids, verdict.members, strict=True)
        ]
        own |= {"scores": [member.score for member in members], "finished_at": self.finished_at}
        return JudgementOut(members=members, **{**shared, **own})

    def raise_failure(self) -> None:
        """Raises the `Problem` of a failed judgement; otherwise does nothing."""
        if (verdict := self.verdict) is not None and verdict.group is None:
            raise Problem(502, "judge-failed", verdict.problem or "", verdict.remedy, {}, {"judgement": self.id})

    def judgements(self) -> dict[str, Judgement]:
        """The members' judgements by id, in the request's order. Raises `Problem` for an unfinished or failed one."""
        if self.verdict is None:
            why = "the group is not judged yet; it is stored, and judging goes on."
            raise Problem(503, "not-judged-yet", why, "Send the same request again.", {"Retry-After": "5"})
        self.raise_failure()
        return dict(zip(self.verdict.ids, self.verdict.members, strict=True))


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member to be accepted, and the name of its group."""

    request: MemberRequest
    group: str
    key_id: str
    judge: str
    trajectory: bytes
    """The trajectory as JSON."""
    options: bytes
    """Judging options of the group, as JSON."""
    deadline_seconds: float
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
    """A group in the database, whose members arrive separately."""

    name: str
    expected: int
    arrived: int
    deadline_at: float
    record: Record
    """Its judgement, or what is known of it while the group is open or waits."""

    @property
    def is_open(self) -> bool:
        return self.record.status == "open"
