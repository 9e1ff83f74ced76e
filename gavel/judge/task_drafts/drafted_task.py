"""A draft of tasks: each task that a model has written with its attempts, and the record of all of them on disk.

The record is written whole after every batch and every checked task, so an interrupted draft goes on from there.
"""

import json
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from gavel.base.files import write_atomically
from gavel.judge.errors import JudgeError
from gavel.scenarios.criterion import Criterion
from gavel.scenarios.task import Task

Reason = Literal["duplicate", "unsolved", "trivial", "unchecked"]
SAME = 0.6
"""Likeness from which two tasks are one."""
_LITTLE = re.compile(
    r"an?|and|are|as|at|be|been|but|by|can|could|do|does|for|from|ha[sd]|have|her|his|how|if?|in|into|is|its?|me|my|of"
    r"|on|or|our|please|so|some|that|the|their|them|then|there|these|they|this|to|us|was|we|were|what|when|where|which"
    r"|who|will|with|would|your?"
)
_ENDING = re.compile(r"(?:ings?|ed|es|s)$")
_NUMBER = re.compile(r"\w*\d\w*")


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


class DraftRecord(BaseModel):
    address: str
    seen: str | None = None
    """What was met by looking around; None = nobody has looked yet."""
    tasks: list[DraftedTask] = Field(default_factory=list[DraftedTask])
    unusable: int = 0
    """Tasks that could not be read."""

    @property
    def used(self) -> list[DraftedTask]:
        """Those that nothing speaks against."""
        return [task for task in self.tasks if task.left_out is None]

    def save(self, path: Path) -> None:
        """Raises `JudgeError` when it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False))
        except OSError as error:
            raise JudgeError(f"{path} cannot be written: {error.strerror}", "Make room there.") from error

    @classmethod
    def read(cls, path: Path, address: str) -> "DraftRecord":
        """The draft in the file, or a new one. Raises `JudgeError` for one of another server."""
        if not path.exists():
            return cls(address=address)
        try:
            record = cls.model_validate_json(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise JudgeError(f"{path} is no draft that can go on.", "Move it away to begin again.") from error
        if record.address != address:
            raise JudgeError(
                f"{path} is a draft for {record.address}, not for {address}.", "Choose another name, or move it away."
            )
        return record


def likeness(one: str, other: str) -> float:
    """How much two tasks say the same, from 0 to 1, by the words and the letters that they have in common.

    likeness("Refund order 1001.", "Please refund the orders 2002") is 1.0: numbers are one word, since the same request
    about another order is the same task, and endings and little words do not count.
    """
    return max(_common(_words(one), _words(other)), _common(_letters(one), _letters(other)))


def _words(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", _NUMBER.sub("#", text.casefold()).replace("#", " 0 "))
    return frozenset(_ENDING.sub("", word) if len(word) > 4 else word for word in words if not _LITTLE.fullmatch(word))


def _letters(text: str) -> frozenset[str]:
    """Runs of four characters, for scripts without spaces between words."""
    text = " ".join(_NUMBER.sub("0", text.casefold()).split())
    return frozenset(text[start : start + 4] for start in range(max(1, len(text) - 3)))


def _common(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0
