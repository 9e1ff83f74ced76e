"""Drafts by a language model: a rubric from a task's description.

    rubric = await draft_rubric(client, "The agent runs a returns desk.")

What is drafted is valid or an error: a reply is read by the rules of a rubric file, and an invalid one goes back to the
model with the reason, a limited number of times.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gavel.judge.errors import JudgeError, llm_errors_as_judge_errors
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.reply.lenient_json import Broken, find_value
from gavel.judge.rubric import Rubric
from gavel.llm.client import Client
from gavel.llm.types import Message, Reply, Schema
from gavel.prompts import render

_T = TypeVar("_T")

LONGEST = 4000
"""Max characters of a draft: every call of the judge that uses it pays for them."""
MOST_CRITERIA = 10
_REPAIRS = 2
"""Max repair requests after an invalid reply."""


class DraftError(JudgeError):
    """The reply is not what was asked for; the message, which is shown to the model, says why."""


async def ask_for(client: Client, prompt: list[Message], schema: Schema, read: Callable[[str], _T], *, noun: str) -> _T:
    """The result of `read` for the model's reply; it raises `DraftError` for an invalid one.

    `noun`: what the model writes, for errors. Raises `DraftError` when the last reply is invalid too, and `JudgeError`
    when the model cannot be asked.
    """
    check_can_write(client, noun)
    repair: list[Message] = []
    unusable: list[tuple[list[Message], Reply]] = []
    problem = ""

    def can_be_used(reply: Reply) -> bool:
        try:
            read(reply.text)
        except DraftError:
            return False
        return True

    for _ in range(1 + _REPAIRS):
        with llm_errors_as_judge_errors():
            reply = await client.ask(prompt + repair, schema, can_be_used, unusable)
        try:
            return read(reply.text)
        except DraftError as error:
            problem = error.message.removesuffix(".")
        unusable.append((prompt + repair, reply))
        repair = [
            {"role": "assistant", "content": reply.text.strip() or "(no reply)"},
            {"role": "user", "content": render("judge/draft_repair.j2", problem=problem)},
        ]
    raise DraftError(
        f"{client.name} drafted no {noun.removeprefix('a ')}: {problem}.",
        "Try again, or with another model: --model MODEL.",
    )


def check_can_write(client: Client, noun: str) -> None:
    """Raises `JudgeError` for a model that cannot write `noun`, or cannot be asked."""
    if client.name.startswith("gavel/"):
        raise JudgeError(
            f"{client.name} goes by rules and cannot draft {noun}.",
            "Name a model that can write, with --model or GAVEL_JUDGE_MODEL: openai/gpt-5-mini, ollama/qwen3.",
        )
    with llm_errors_as_judge_errors():
        client.check()


def read_object(reply: str) -> dict[str, Any]:
    """The JSON object that a reply is. Raises `DraftError`."""
    try:
        value = find_value(reply).value
    except Broken as broken:
        raise DraftError(str(broken)) from broken
    if not isinstance(value, dict):
        raise DraftError("it is no JSON object")
    return cast("dict[str, Any]", value)


def schema_object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CRITERIA: Schema = {
    "type": "array",
    "items": schema_object({"name": {"type": "string"}, "text": {"type": "string"}, "weight": {"type": "number"}}),
}


async def draft_rubric(client: Client, description: str, *, criteria: bool = False) -> Rubric:
    """A rubric for the job that `description` describes: a text, or with `criteria` weighted criteria.

    Raises `DraftError` when the last reply is invalid too, and `JudgeError` when the description is empty or the model
    cannot be asked.
    """
    if not description.strip():
        raise JudgeError("there is no description of the task.", "Say in a sentence or more what the agent's job is.")
    text = render("judge/draft_rubric.j2", description=sanitize(description.strip()), criteria=criteria)
    schema = schema_object({"criteria": CRITERIA} if criteria else {"text": {"type": "string"}})
    prompt: list[Message] = [{"role": "user", "content": text}]
    return await ask_for(client, prompt, schema, lambda reply: read_draft(reply, criteria=criteria), noun="a rubric")


def read_draft(reply: str, *, criteria: bool) -> Rubric:
    """The rubric in a reply, its last JSON object. Raises `DraftError`."""
    value = read_object(reply)
    try:
        rubric = Rubric.of(sanitize(json.dumps(value, ensure_ascii=False, default=lambda _: None)))
    except JudgeError as error:
        raise DraftError(error.message) from error
    if criteria and not 2 <= len(rubric.criteria) <= MOST_CRITERIA:
        raise DraftError(f"it has {len(rubric.criteria)} criteria, not 2 to {MOST_CRITERIA}")
    if not criteria and (rubric.criteria or not rubric.text):
        raise DraftError("it has criteria where a text was asked for")
    if len(rubric.words) > LONGEST:
        raise DraftError(f"it is {len(rubric.words):,} characters long, and {LONGEST:,} are the most")
    return rubric
