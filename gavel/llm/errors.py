"""Errors of calls to models."""

from gavel.base.errors import GavelError


class LlmError(GavelError):
    """A language model could not be called, or did not answer."""

    may_be_paid = True
    """Whether an attempt may have cost something; False = each was rejected, answered with an error, or never sent."""


class MissingKeyError(LlmError):
    """The model's API key is not set."""


class UnknownModelError(LlmError):
    """No provider serves a model of this name."""


class PermanentError(LlmError):
    """No request to this endpoint can succeed until someone fixes the key, credit, model or parameters."""


class NotAskedError(LlmError):
    """The request was not sent to the model, and costs nothing."""


class BudgetError(NotAskedError):
    """The call would have exceeded the budget."""


class RefusedError(LlmError):
    """The model, or a filter in front of it, refuses the prompt's content."""


class ContextError(LlmError):
    """The prompt, or the prompt with its reply, exceeds the model's context."""

    def __init__(self, message: str, remedy: str = "", limit: int | None = None) -> None:
        super().__init__(message, remedy)
        self.limit = limit
        """Context length in tokens, as the server names it; None = it names none."""


class CassetteError(NotAskedError):
    """A cassette cannot be used, or in the mode "replay" has no reply to the request."""
