"""Errors of judging, each with its remedy."""

from collections.abc import Generator
from contextlib import contextmanager

from gavel.llm.errors import LlmError
from gavel.scenarios.errors import JudgeError as JudgeError


class ContextTooSmallError(JudgeError):
    """The judge's context is too small for two trajectories, even when they are shortened."""


@contextmanager
def llm_errors_as_judge_errors() -> Generator[None, None, None]:
    """Raises an `LlmError` of the block as a `JudgeError` with the same message and remedy."""
    try:
        yield
    except LlmError as error:
        raise as_judge_error(error) from error


def no_group(given: object) -> JudgeError:
    return JudgeError(
        f"a {type(given).__name__} is no group.", "Give gavel.TrajectoryGroup(trajectories): all for one task."
    )


def as_judge_error(error: LlmError) -> JudgeError:
    """The same message and remedy; `__cause__` is the error."""
    judged = JudgeError(error.message, error.remedy)
    judged.__cause__ = error
    return judged
