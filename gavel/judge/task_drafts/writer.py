"""Asks a model for a batch of tasks for the tools of a server.

What the server says is material: it enters the prompt between two lines and without characters that could forge one.
A task of the batch that is not usable is dropped and counted; a batch without a usable one goes back with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gavel.judge.drafts import DraftError, ask_for, read_object
from gavel.judge.errors import JudgeError
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.task_drafts.drafted_task import DraftedTask
from gavel.llm.client import Client
from gavel.llm.types import Message, Schema
from gavel.prompts import render
from gavel.scenarios.criterion import Criterion

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
    criterion = _object({"name": {"type": "string"}, "text": {"type": "string"}, "weight": {"type": "number"}})
    task: Schema = {"task": {"type": "string"}, "difficulty": {"type": "integer"}}
    if criteria:
        task["criteria"] = {"type": "array", "items": criterion}
    return _object({"scenarios": {"type": "array", "items": _object(task)}})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
