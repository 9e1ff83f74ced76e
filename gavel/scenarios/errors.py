"""The error of judging. It stands in the lowest package that raises it, since a task may carry criteria."""

from gavel.base.errors import GavelError


class JudgeError(GavelError):
    """A judge could not be asked, or its reply could not be used.

    When a call to its model failed, `__cause__` is the `gavel.llm.errors.LlmError`.
    """
