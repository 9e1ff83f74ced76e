"""What a call raised -> the error of this package: of the kind that decides what is done next, with its remedy."""

import openai

from gavel.base.errors import GavelError
from gavel.base.secrets import without_secrets
from gavel.llm.errors import ContextError, LlmError, PermanentError, RefusedError
from gavel.llm.refusal_wording import is_refusal
from gavel.llm.retry import context_limit, is_permanent, is_rate_limit, is_too_long, remedy


def as_llm_error(error: Exception, model: str, timeout: float) -> LlmError:
    """`timeout`: seconds that an attempt may take."""
    if isinstance(error, TimeoutError) and not str(error):  # a callable's attempt
        return LlmError(f"{model} did not answer within {timeout:g} s.")
    if isinstance(error.__cause__, GavelError):  # of a local model: it says itself what is wrong
        return LlmError(error.__cause__.message, error.__cause__.remedy)
    what = str(error) if isinstance(error, openai.OpenAIError) else f"{type(error).__name__}: {error}"
    message = f"{model} failed: {_shown(what)}"
    if is_too_long(error):
        return ContextError(message, remedy(error), context_limit(what))
    if is_refusal(error):
        return RefusedError(message)
    if is_permanent(error):
        return PermanentError(message, remedy(error))
    if is_rate_limit(error):
        message = f"{model} is rate limited, for longer than a call may wait: {_shown(what)}"
    return LlmError(message, remedy(error))


def _shown(words: str) -> str:
    """The words without keys, without a traceback (LiteLLM's, of a reply that it cannot read), and not a whole page."""
    words = without_secrets(words).partition("Traceback (most recent call last)")[0].rstrip()
    return words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]} …"


_MOST_CHARACTERS = 1000
