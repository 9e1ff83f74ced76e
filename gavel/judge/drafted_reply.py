"""Asks a model for something that is read from a JSON object of its reply.

An invalid reply goes back to the model with the reason, a limited number of times; what is read is valid or an error.
"""

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import gavel.judge.offline  # noqa: F401 # pyright: ignore[reportUnusedImport] - registers the stand-in
from gavel.judge.errors import JudgeError, llm_errors_as_judge_errors
from gavel.judge.reply.lenient_json import Broken, find_value
from gavel.llm.client import Client
from gavel.llm.types import Message, Reply, Schema
from gavel.prompts import render

_T = TypeVar("_T")


class DraftError(JudgeError):
    """The reply is not what was asked for; the message, which is shown to the model, says why."""


async def ask_for(
    client: Client,
    prompt: list[Message],
    schema: Schema,
    read: Callable[[str], _T],
    *,
    noun: str,
    content_retries: int = 2,
) -> _T:
    """What `read` finds in the model's reply; it raises `DraftError` for an invalid one.

    `content_retries`: max repair requests. `noun`: what the model writes, for errors. Raises `DraftError` when the last
    reply is invalid too, and `JudgeError` when the model cannot be asked.
    """
    check_can_write(client, noun)
    repair: list[Message] = []
    unusable: list[tuple[list[Message], Reply]] = []
    problem = ""

    def is_valid(reply: Reply) -> bool:
        try:
            read(reply.text)
        except DraftError:
            return False
        return True

    for _ in range(1 + content_retries):
        with llm_errors_as_judge_errors():
            reply = await client.ask(prompt + repair, schema, is_valid, unusable)
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
        raise DraftError(broken.problem) from broken
    if not _is_object(value):
        raise DraftError("it is no JSON object")
    return value


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
