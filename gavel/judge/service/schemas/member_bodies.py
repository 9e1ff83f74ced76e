"""What `POST /v1/groups/{group}/members` takes and answers: one member of a group whose members arrive one by one."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gavel.judge.service.schemas.numbers import Boolean, Integer, Number
from gavel.judge.service.schemas.score_bodies import (
    ConversationIn,
    FinishedStatus,
    JudgingOptions,
    PendingStatus,
    TrajectoryIn,
)

NAME_PATTERN = r"^(?:\.{0,2}[^/\x00.][^/\x00]*|\.{3}[^/\x00]*)$"
"""Of names that stand in a path: no slash, and neither "." nor "..", which clients take out of an address."""
PathName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN)]
OnDeadline = Literal["judge", "unscored"]
_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


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
        """The member as `POST /v1/score` takes it."""
        return TrajectoryIn(id=self.id, **{name: getattr(self, name) for name in ConversationIn.model_fields})

    @property
    def options(self) -> JudgingOptions:
        """How its group is judged."""
        return JudgingOptions(**{name: getattr(self, name) for name in JudgingOptions.model_fields})


class MemberAnswer(BaseModel):
    """The score of one member of a judged group."""

    model_config = _DOCUMENTED

    group: str
    id: str
    judgement: str
    """Id of the group's judgement: `GET /v1/judgements/{id}` has all its members."""
    status: FinishedStatus
    """That of the group, as in `POST /v1/score`."""
    score: float | None
    """From 0 to 1; null = not scored, and `reason` says why."""
    standard_error: float | None = None
    explanation: str = ""
    flags: list[str] = []
    reason: str | None = None
    expected: int
    arrived: int
    """Members that were judged together; fewer than expected after a deadline."""


class MemberPending(BaseModel):
    """A member of a group that is not judged yet."""

    model_config = _DOCUMENTED

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
