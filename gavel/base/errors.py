"""The base of every error that a user can mend."""

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
