"""Asks a model for a batch of tasks for the tools of a server.

What the server says is material: it enters the prompt between two lines and without characters that could forge one.
A task of the batch that is not usable is dropped and counted; a batch without a usable one goes back with the reason.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gavel.base.files import write_atomically
from gavel.judge.drafts import DraftError, ask_for, read_object, schema_object
from gavel.judge.errors import JudgeError
from gavel.judge.prompt.sanitize import sanitize
from gavel.llm.client import Client
from gavel.llm.types import Message, Schema
from gavel.prompts import render
from gavel.scenarios.task import Task
from gavel.scenarios.truth import Criterion

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


_LONGEST = 4_000
"""Characters of a task."""
_SHOWN = 200
"""Characters of an earlier task, and earlier tasks, that the model is shown."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a model knows of a server."""

    tools: str
    resources: str = ""
    prompts: str = ""
    server_says: str = ""
    seen: str = ""
    """What an agent has met that looked around."""


@dataclass(frozen=True, slots=True)
class Batch:
    tasks: list[DraftedTask] = field(default_factory=list[DraftedTask])
    unusable: int = 0


class _WrittenCriterion(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str = Field(min_length=1, max_length=80)
    text: str = Field(min_length=1, max_length=1_000)
    weight: float = Field(gt=0, le=100)


class _WrittenTask(BaseModel):
    model_config = ConfigDict(strict=True)
    task: str = Field(max_length=_LONGEST)
    difficulty: int = Field(ge=1, le=5)
    criteria: list[_WrittenCriterion] = []


async def write_batch(
    client: Client,
    material: Material,
    number: int,
    *,
    criteria: bool = True,
    difficulties: Sequence[int] = (),
    earlier: Sequence[str] = (),
    instructions: str = "",
    exact: bool = False,
) -> Batch:
    """At most `number` tasks (`exact`: no fewer either). Raises `DraftError`, and `JudgeError` for a model that cannot
    be asked."""
    counts = ", ".join(f"{difficulties.count(each)} of difficulty {each}" for each in sorted(set(difficulties)))
    prompt = render(
        "scenarios/mcp_tasks.j2",
        number=number,
        difficulties=counts,
        tools=_material(material.tools),
        resources=_material(material.resources),
        prompts=_material(material.prompts),
        server_says=_material(material.server_says),
        seen=_material(material.seen),
        criteria=criteria,
        earlier=[sanitize(" ".join(task.split()))[:_SHOWN] for task in earlier[-_SHOWN:]],
        instructions=instructions,
    )
    messages: list[Message] = [{"role": "user", "content": prompt}]
    return await ask_for(
        client, messages, _schema(criteria), lambda reply: read_batch(reply, number, criteria, exact), noun="tasks"
    )


def read_batch(reply: str, number: int, criteria: bool, exact: bool = False) -> Batch:
    """The tasks in a reply. Raises `DraftError` when none of them can be used."""
    found: object = read_object(reply).get("scenarios")
    if not isinstance(found, list):
        raise DraftError('it has no list "scenarios"')
    written = cast("list[Any]", found)
    if exact and len(written) != number:
        raise DraftError(f"it has {len(written)} scenarios, not {number}")
    tasks: list[DraftedTask] = []
    problem = "there are none"
    for one in written[:number]:
        try:
            tasks.append(_read(one, criteria))
        except DraftError as error:
            problem = error.message
            if exact:
                raise
    if not tasks:
        raise DraftError(f"none of its tasks can be used: {problem}")
    return Batch(tasks, len(written[:number]) - len(tasks))


def _read(one: object, criteria: bool) -> DraftedTask:
    try:
        written = _WrittenTask.model_validate(one)
        marks = [Criterion(sanitize(c.name).strip(), sanitize(c.text).strip(), c.weight) for c in written.criteria]
    except ValidationError as error:
        first = error.errors()[0]
        raise DraftError(f"{'.'.join(map(str, first['loc'])) or 'a task'}: {first['msg']}") from error
    except JudgeError as error:
        raise DraftError(error.message) from error
    words = sanitize(written.task).strip()
    if not words:
        raise DraftError("a task has no words")
    if criteria and not 1 <= len(marks) <= 10:
        raise DraftError(f"a task has {len(marks)} criteria, not 2 to 4")
    if len({mark.name for mark in marks}) < len(marks):
        raise DraftError("a task has two criteria of one name")
    return DraftedTask(user=words, difficulty=written.difficulty, criteria=marks if criteria else [])


def _material(text: str) -> str:
    """A server's text, whose lines cannot be taken for the end of it."""
    return sanitize(text).replace("End of the server's text", "End of the server’s text").strip()


def _schema(criteria: bool) -> Schema:
    criterion = schema_object({"name": {"type": "string"}, "text": {"type": "string"}, "weight": {"type": "number"}})
    task: Schema = {"task": {"type": "string"}, "difficulty": {"type": "integer"}}
    if criteria:
        task["criteria"] = {"type": "array", "items": criterion}
    return schema_object({"scenarios": {"type": "array", "items": schema_object(task)}})
