"""What can go wrong with a judge, in a form that tells what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from gavel.errors import GavelError
from gavel.llm.errors import LlmError


class JudgeError(GavelError):
    """A judge could not be asked, or what it said could not be used.

    Where a call to its model is the reason, `__cause__` is the `gavel.llm.errors.LlmError`.
    """


class ContextTooSmallError(JudgeError):
    """The judge's context has no room for two trajectories, however they are shortened."""


@contextmanager
def llm_errors_as_judge_errors() -> Iterator[None]:
    """Raises an `LlmError` of the block as a `JudgeError` with the same message and remedy."""
    try:
        yield
    except LlmError as error:
        raise JudgeError(error.message, error.remedy) from error
