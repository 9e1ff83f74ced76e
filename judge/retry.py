"""What an error of a judge model means: try again, try otherwise, or give up."""

import email.utils
import time

import openai
from tenacity import RetryCallState, wait_random_exponential


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, openai.RateLimitError):
        return "insufficient_quota" not in str(error)
    passing = isinstance(error, openai.APIConnectionError) or (
        isinstance(error, openai.APIStatusError) and (error.status_code == 408 or error.status_code >= 500)
    )
    return passing and not _too_long(error)


def may_be_the_format(error: openai.BadRequestError) -> bool:
    """Whether a request may be refused for the reply format that it asks for; servers word that in many ways."""
    refused_content = "ContentPolicy" in type(error).__name__
    return error.status_code in (400, 422) and not refused_content and not _too_long(error)


def pause(state: RetryCallState) -> float:
    """Seconds until the next attempt: what the server asks for, or a growing random time."""
    error = state.outcome.exception() if state.outcome else None
    headers = getattr(error, "litellm_response_headers", None) or {}
    asked = _seconds(headers.get("retry-after", ""))
    return _backoff(state) if asked is None else max(asked, 0.0)


def remedy(error: Exception) -> str:
    """What to do about it, where that is known."""
    match error:
        case openai.AuthenticationError():
            return "Check the API key in .env, or pick another judge: --judge stand-in, --judge ollama/qwen3."
        case openai.NotFoundError():
            return "Check the model's name and the address of its server."
        case _ if _too_long(error):
            return "Pick a judge with a longer context, or judge smaller groups."
        case _:
            return ""


_backoff = wait_random_exponential(multiplier=1, max=30)


def _too_long(error: BaseException) -> bool:
    return "ContextWindow" in type(error).__name__ or "maximum context length" in str(error)


def _seconds(retry_after: str) -> float | None:
    """`Retry-After` as seconds: it is a number or a date."""
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    except ValueError:
        return None
