"""The base of every error that a user can mend, and what can go wrong with a call to a model.

The base is here because this is the lowest floor that raises one.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


class GavelError(Exception):
    """What happened, and what to type next.

    The command line prints both parts and exits with status 1; no traceback for a user's mistake.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}\n{remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it reaches whoever waits for another process, whatever its own class is made with."""
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[GavelError], args: tuple[object, ...]) -> GavelError:
    return kind.__new__(kind, *args)


class LlmError(GavelError):
    """A language model could not be called, or did not answer."""

    may_be_paid = True
    """Whether an attempt may have cost something; False = each was refused, answered with an error, or never sent."""


class MissingKeyError(LlmError):
    """The model's API key is not set."""


class UnknownModelError(LlmError):
    """No provider serves a model of this name."""


class PermanentError(LlmError):
    """No request to this endpoint can succeed until a person mends something: key, credit, model or parameters."""


class NotAskedError(LlmError):
    """The request was not sent to the model, and costs nothing."""


class BudgetError(NotAskedError):
    """The call would have exceeded the budget."""


class RefusedError(LlmError):
    """The model, or a filter before it, refuses the content of the prompt."""


class ContextError(LlmError):
    """The prompt, or the prompt with its reply, is longer than the model's context."""

    def __init__(self, message: str, remedy: str = "", limit: int | None = None) -> None:
        super().__init__(message, remedy)
        self.limit = limit
        """Context length in tokens, as the server names it; None = it names none."""


class NotYetError(NotAskedError):
    """The reply comes later, with a batch."""


class UnknownPriceError(LlmError):
    """A budget in dollars cannot be kept, because the model's price is not known."""


class CassetteError(NotAskedError):
    """A cassette cannot be used."""


class CassetteMissError(CassetteError):
    """A cassette in the mode "replay" has no reply to the request."""


@contextmanager
def first_error() -> Generator[None]:
    """Around an `asyncio.TaskGroup`: when all that failed in it are `GavelError`s, the first is raised as itself."""
    try:
        yield
    except ExceptionGroup as group:
        errors, others = group.split(GavelError)
        if errors is None or others is not None:
            raise
        first = errors.exceptions[0]
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__
