"""What can go wrong with a call to a language model, in a form that tells what to do about it."""

from gavel.errors import GavelError


class LlmError(GavelError):
    """A language model could not be called, or did not answer."""


class MissingKeyError(LlmError):
    """The model's API key is not set."""


class UnknownModelError(LlmError):
    """No provider serves a model of this name."""


class NotAskedError(LlmError):
    """The request was not sent to the model, and nothing is owed for it."""


class BudgetError(NotAskedError):
    """The call would have exceeded the budget."""


class ContextError(LlmError):
    """The prompt, or the prompt with room for its reply, is longer than the model's context."""

    def __init__(self, message: str, remedy: str = "", limit: int | None = None) -> None:
        super().__init__(message, remedy)
        self.limit = limit
        """In tokens, as the server names it; None = it names none."""


class UnknownPriceError(LlmError):
    """A budget in dollars cannot be kept, because the model's price is not known."""


class CassetteError(NotAskedError):
    """A cassette cannot be used."""


class CassetteMissError(CassetteError):
    """A cassette that is only replayed has no reply to the request."""
