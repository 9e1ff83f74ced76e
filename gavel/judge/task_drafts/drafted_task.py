"""A task that a model has written, with what attempts at it have shown."""

from typing import Literal

from pydantic import BaseModel, Field

from gavel.scenarios.criterion import Criterion
from gavel.scenarios.task import Task

Reason = Literal["duplicate", "unsolved", "trivial", "unchecked"]


class Attempt(BaseModel):
    """What one attempt came to."""

    solved: bool | None
    """None = it could not be played or judged; `why` says so."""
    why: str = ""
    used_tools: bool = False
    """Whether a call of a tool was answered."""


class DraftedTask(BaseModel):
    """A task from 1 (easy) to 5 (hard)."""

    user: str
    difficulty: int = Field(ge=1, le=5)
    criteria: list[Criterion] = Field(default_factory=list[Criterion])
    attempts: list[Attempt] = Field(default_factory=list[Attempt])
    left_out: Reason | None = None
    """Why it is not used; None = it is."""

    @property
    def solved_share(self) -> float | None:
        """Over the attempts that were judged; None when none was."""
        judged = [attempt.solved for attempt in self.attempts if attempt.solved is not None]
        return sum(judged) / len(judged) if judged else None

    def task(self) -> Task:
        data: dict[str, float | None] = {"difficulty": self.difficulty, "solved": self.solved_share}
        return Task(user=self.user, criteria=self.criteria, data={**data})


def reason_to_leave_out(attempts: list[Attempt]) -> Reason | None:
    """What the attempts at a task say against it."""
    judged = [attempt for attempt in attempts if attempt.solved is not None]
    if not judged:
        return "unchecked"
    if not any(attempt.solved for attempt in judged):
        return "unsolved"
    if all(attempt.solved and not attempt.used_tools for attempt in judged):
        return "trivial"
    return None
