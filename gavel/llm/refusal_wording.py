"""Refusals: how models and their filters say that they will not answer because of a prompt's content.

As an error of the server, as a finish reason, in a field of the message, or in plain words.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

import openai

from gavel.llm.provider_failure import read_failure

CONTENT_FILTER = "content_filter"
"""Finish reason of a reply that was refused or filtered."""
_MAX_SHOWN = 200


def is_refusal(error: BaseException) -> bool:
    """Whether a server's error is about the prompt's content, such as a 400 of a content filter."""
    return isinstance(error, openai.OpenAIError) and (
        "ContentPolicy" in type(error).__name__ or read_failure(error).is_refusal
    )


def refusal_in(message: Mapping[str, Any]) -> str:
    """The refusal in a field of an assistant's message, where OpenAI puts it; empty = none."""
    fields: object = message.get("provider_specific_fields")
    given = message.get("refusal")
    if isinstance(fields, Mapping):
        given = given or cast("Mapping[str, Any]", fields).get("refusal")
    return given if isinstance(given, str) else ""


def is_refusal_text(text: str) -> bool:
    """Whether a reply that could not be read begins like a refusal in plain words; a guess."""
    return _TEXT.match(text.strip()) is not None


def filtered(model: str, text: str) -> str:
    """A sentence on a refusal, with the model's words where there are any."""
    said = " ".join(text.split())
    return f"{model} said: {said[:_MAX_SHOWN]}" if said else f"{model} gave an empty reply, stopped by a content filter"


_TEXT = re.compile(
    r"(?:i['\u2019]?m (?:very |really |so )?sorry|i am (?:very |really |so )?sorry|sorry|i apologi[sz]e|unfortunately"
    r"|i (?:can(?:no|['\u2019])t|can not|won['\u2019]t|will not|must decline|decline|am unable|am not able)"
    r"|i['\u2019]m (?:unable|not able))\b"
    r"(?=.{0,160}\b(?:can(?:no|['\u2019])?t|can not|won['\u2019]t|unable|not able|decline|not comfortable|refuse"
    r"|help|assist|comply)\b)|i (?:can(?:no|['\u2019])t|can not|won['\u2019]t|will not|must decline)\b",
    re.IGNORECASE | re.DOTALL,
)
