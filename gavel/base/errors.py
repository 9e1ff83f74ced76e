"""The base class of every error that a user can fix, and guards around foreign code."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")


class GavelError(Exception):
    """An error with a message and a remedy: what happened, and what to type next.

    The command line prints both parts and exits with status 1; no traceback for a user's mistake.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}\n{remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the error picklable across processes, whatever arguments a subclass's constructor takes."""
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[GavelError], args: tuple[object, ...]) -> GavelError:
    return kind.__new__(kind, *args)


@contextmanager
def first_error() -> Generator[None]:
    """Wraps an `asyncio.TaskGroup`: if all its failures are `GavelError`s, the first is raised as itself."""
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


async def run_all(works: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Runs the coroutines concurrently; returns their results in order. The first failure ends the others, and is
    raised as by `first_error`."""
    with first_error():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in works]
    return [task.result() for task in running]


async def contain_cancellation(awaitable: Awaitable[_T]) -> _T:
    """Awaits `awaitable`; a cancellation that it raised itself becomes a `RuntimeError`, and so does a `BaseException`
    that is no `Exception`, which would end the program.

    Only a cancellation of the running task passes through. Otherwise a rollout that cancels itself, for example by a
    cancel scope of its HTTP client, would cancel its whole group silently.
    """
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("it was cancelled from within") from error
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
