"""Drafts a rubric from a task's description, with a language model.

A draft is a valid rubric or an error: a reply is read by the same rules as a rubric file, and an invalid one goes back
to the model with the reason, a limited number of times.
"""

import json
from typing import Any, TypeGuard

import gavel.judge.offline  # noqa: F401 # pyright: ignore[reportUnusedImport] - registers the stand-in
from gavel.judge.errors import JudgeError, llm_errors_as_judge_errors
from gavel.judge.prompt.fenced_transcript import sanitize
from gavel.judge.reply.lenient_json import Broken, Found, find_values
from gavel.judge.rubric import Rubric
from gavel.llm.client import Client
from gavel.llm.types import Message, Reply, Schema
from gavel.prompts import render

LONGEST = 4000
"""Max characters of a draft: every call of the judge that uses it pays for them."""
MOST_CRITERIA = 10


class DraftError(JudgeError):
    """The reply is not a valid rubric; the message, which is shown to the model, says why."""


async def draft_rubric(client: Client, description: str, *, criteria: bool = False, content_retries: int = 2) -> Rubric:
    """A rubric for the job that `description` describes: a text, or with `criteria` weighted criteria.

    `content_retries`: max repair requests for an invalid reply. Raises `DraftError` when the last one is invalid too,
    and `JudgeError` when the description is empty or the model cannot be asked.
    """
    if not description.strip():
        raise JudgeError("there is no description of the task.", "Say in a sentence or more what the agent's job is.")
    return await ask_for_rubric(client, draft_prompt(description, criteria=criteria), criteria, content_retries)


async def ask_for_rubric(client: Client, prompt: list[Message], criteria: bool, content_retries: int = 2) -> Rubric:
    """The rubric that the model replies to the prompt with. Raises as `draft_rubric` does."""
    if client.name.startswith("gavel/"):
        raise JudgeError(
            f"{client.name} goes by rules and cannot draft a rubric.",
            "Name a model that can write, with --model or GAVEL_JUDGE_MODEL: openai/gpt-5-mini, ollama/qwen3.",
        )
    with llm_errors_as_judge_errors():
        client.check()
    repair: list[Message] = []
    unusable: list[tuple[list[Message], Reply]] = []
    problem = ""

    def is_draft(reply: Reply) -> bool:
        try:
            read_draft(reply.text, criteria=criteria)
        except DraftError:
            return False
        return True

    for _ in range(1 + content_retries):
        with llm_errors_as_judge_errors():
            reply = await client.ask(prompt + repair, draft_schema(criteria=criteria), is_draft, unusable)
        try:
            return read_draft(reply.text, criteria=criteria)
        except DraftError as error:
            problem = error.message.removesuffix(".")
            unusable.append((prompt + repair, reply))
            repair = [
                {"role": "assistant", "content": reply.text.strip() or "(no reply)"},
                {"role": "user", "content": render("judge/draft_repair.j2", problem=problem)},
            ]
    raise DraftError(f"{client.name} drafted no rubric: {problem}.", "Try again, or with another model: --model MODEL.")


def draft_prompt(description: str, *, criteria: bool) -> list[Message]:
    words = render("judge/draft_rubric.j2", description=sanitize(description.strip()), criteria=criteria)
    return [{"role": "user", "content": words}]


def draft_schema(*, criteria: bool) -> Schema:
    """The JSON schema of a draft."""
    if not criteria:
        return _object({"text": {"type": "string"}})
    criterion = _object({"name": {"type": "string"}, "text": {"type": "string"}, "weight": {"type": "number"}})
    return _object({"criteria": {"type": "array", "items": criterion}})


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read_draft(reply: str, *, criteria: bool) -> Rubric:
    """The rubric in a reply, its last JSON object. Raises `DraftError`."""
    value = _last_object(reply)
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


def _last_object(reply: str) -> dict[str, Any]:
    last: dict[str, Any] | Broken | None = None
    for found in find_values(reply):
        match found:
            case Found(None, repairs, 0) if repairs["thoughts"]:
                last = None
            case Broken():
                last = found
            case Found(value) if _is_object(value):
                last = value
            case _:
                pass
    if last is None:
        raise DraftError("it holds no JSON object")
    if isinstance(last, Broken):
        raise DraftError("its last JSON object breaks off or is not valid JSON")
    return last


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
