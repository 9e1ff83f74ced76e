"""The error of judging. It is here because this is the lowest floor that raises it: a task may carry criteria."""

from gavel.base.errors import GavelError


class JudgeError(GavelError):
    """A judge could not be asked, or its reply could not be used.

    When a call to its model failed, `__cause__` is the `gavel.llm.errors.LlmError`.
    """
