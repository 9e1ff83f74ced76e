"""Drafts a rubric from a task's description, with a language model.

A draft is a valid rubric or an error: a reply is read by the same rules as a rubric file, and an invalid one goes back
to the model with the reason, a limited number of times.
"""

import json

from gavel.judge.drafted_reply import DraftError as DraftError
from gavel.judge.drafted_reply import ask_for, read_object
from gavel.judge.errors import JudgeError
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.rubric import Rubric
from gavel.llm.client import Client
from gavel.llm.types import Message, Schema
from gavel.prompts import render

LONGEST = 4000
"""Max characters of a draft: every call of the judge that uses it pays for them."""
MOST_CRITERIA = 10


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
    return await ask_for(
        client,
        prompt,
        draft_schema(criteria=criteria),
        lambda reply: read_draft(reply, criteria=criteria),
        noun="a rubric",
        content_retries=content_retries,
    )


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
