"""Classifies the errors of a model: retry, change the request, or give up."""

import email.utils
import math
import re
import time
from collections.abc import Mapping

import openai
from tenacity import RetryCallState, wait_random_exponential

from gavel.base.errors import GavelError
from gavel.llm.provider_failure import read_failure
from gavel.llm.refusal_wording import is_refusal


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, openai.APIConnectionError):  # a timeout is one
        return True
    failure = read_failure(error)
    if failure.is_quota or failure.is_refusal or is_too_long(error) or failure.status is None:
        return False
    return failure.status in (408, 409, 429) or failure.status >= 500


def is_permanent(error: BaseException) -> bool:
    """Whether no other request to this endpoint can succeed either: a wrong key, an empty account, no such model."""
    failure = read_failure(error)
    if failure.is_refusal or isinstance(error, openai.APIConnectionError):
        return False
    return failure.status in (401, 402, 403, 404) or failure.is_quota or failure.is_unknown_model


def may_be_the_format(error: openai.OpenAIError) -> bool:
    """Whether the requested reply format may be the reason for a refusal; servers word that in many ways."""
    if isinstance(error.__cause__, GavelError):  # of a local model, which takes no format
        return False
    bad_request = isinstance(error, openai.BadRequestError) and read_failure(error).status in (400, 422)
    return bad_request and not (is_refusal(error) or is_permanent(error) or is_too_long(error))


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
    return _backoff(state) if asked is None else asked


def is_rate_limit(error: BaseException | None) -> bool:
    """Whether the server asks for fewer requests, rather than being broken."""
    return isinstance(error, openai.RateLimitError) or (error is not None and read_failure(error).status == 529)


def remedy(error: Exception) -> str:
    """The remedy for an error, or an empty text."""
    failure = read_failure(error)
    if failure.is_quota or failure.status == 402:
        return "Add credit to the account of this API key, or use another key or model; then run the same again."
    match failure.status:
        case 401:
            return "Check the API key in .env, or pick another model, such as --judge stand-in, --judge ollama/qwen3."
        case 403:
            return "The key may not use this model: check its rights and its region, or pick another model."
        case 404:
            return "Check the model's name and the address of its server."
        case _ if failure.is_unknown_model:
            return "Check the model's name and the address of its server."
        case _ if is_too_long(error):
            return "Pick a model with a longer context, or judge smaller groups."
        case _:
            return ""


def _backoff(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    is_busy = is_rate_limit(error) or (error is not None and read_failure(error).status == 503)
    return (_WHEN_BUSY if is_busy else _WHEN_BROKEN)(state)


_WHEN_BUSY = wait_random_exponential(multiplier=1, max=30)
_WHEN_BROKEN = wait_random_exponential(multiplier=0.25, max=30)
"""One request that failed says little of the next: it is asked again sooner."""

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
    """`Retry-After`, which is a number or a date, in seconds; None for what is neither, such as "nan"."""
    try:
        seconds = float(retry_after)
    except ValueError:
        seconds = _seconds_until(retry_after)
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return math.nan
