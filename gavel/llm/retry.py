"""Classifies the errors of a model: retry, change the request, or give up."""

import email.utils
import re
import time
from collections.abc import Mapping

import openai
from tenacity import RetryCallState, wait_random_exponential

from gavel.llm.errors import GavelError
from gavel.llm.refusal import is_refusal


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, openai.RateLimitError):
        return "insufficient_quota" not in str(error)
    passing = isinstance(error, openai.APIConnectionError) or (
        isinstance(error, openai.APIStatusError) and (error.status_code == 408 or error.status_code >= 500)
    )
    return passing and not is_too_long(error)


def may_be_the_format(error: openai.BadRequestError) -> bool:
    """Whether the requested reply format may be the reason for a refusal; servers word that in many ways."""
    is_local = isinstance(error.__cause__, GavelError)  # of a local model, which takes no format
    return error.status_code in (400, 422) and not (is_local or is_refusal(error) or is_too_long(error))


def is_too_long(error: BaseException) -> bool:
    """Whether the model's context is too small for the prompt, or for the prompt and its reply."""
    worded = not isinstance(error, openai.RateLimitError) and _TOO_LONG.search(str(error))
    return isinstance(error, openai.OpenAIError) and ("ContextWindow" in type(error).__name__ or bool(worded))


def context_limit(words: str) -> int | None:
    """The context length, in tokens, that a server names in a refusal; None when it names none."""
    found = next((found for form in _LIMITS if (found := form.search(words))), None)
    return int(found[1].replace(",", "")) if found else None


def is_in_parts(error: openai.OpenAIError) -> bool:
    """Whether the reply came as a list of content parts, which LiteLLM reports as a failure of the server."""
    words = str(error)
    return "Invalid response object" in words and "input_type=list" in words


def pause(state: RetryCallState) -> float:
    """Seconds until the next attempt: the server's `Retry-After`, or exponential backoff with jitter."""
    error = state.outcome.exception() if state.outcome else None
    headers: Mapping[str, str] = getattr(error, "litellm_response_headers", None) or {}
    asked = _seconds(headers.get("retry-after", ""))
    return _backoff(state) if asked is None else max(asked, 0.0)


def remedy(error: Exception) -> str:
    """The remedy for an error, or an empty text."""
    match error:
        case openai.AuthenticationError():
            return "Check the API key in .env, or pick another model, such as --judge stand-in, --judge ollama/qwen3."
        case openai.NotFoundError():
            return "Check the model's name and the address of its server."
        case _ if is_too_long(error):
            return "Pick a model with a longer context, or judge smaller groups."
        case _:
            return ""


_backoff = wait_random_exponential(multiplier=1, max=30)

_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window|limit)|maximum (?:prompt|model|input) length|(?:prompt|input) is too long"
    r"|maximum number of tokens allowed|tokens exceed the configured limit|number of tokens in the prompt cannot exceed"
    r"|`inputs` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE,
)
"""Wordings of servers, of which LiteLLM knows only some."""

_TOKENS = r"(\d[\d,]*\d)\b"
_LIMITS = [
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:>|<=) {_TOKENS}",
        rf"(?:maximum|available|configured|cannot|context|model's|limit)(?: \w+){{0,6}}? \(?{_TOKENS}",
        rf"{_TOKENS} maximum",
    )
]
"""The most specific pattern first: a refusal also states the length of the prompt."""


def _seconds(retry_after: str) -> float | None:
    """`Retry-After`, which is a number or a date, in seconds."""
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    except ValueError:
        return None
