"""Tells cancellation from outside, which is obeyed, from one that foreign code raises itself, which is an error."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def contain_cancellation(awaitable: Awaitable[_T]) -> _T:
    """Awaits `awaitable`; a cancellation that it raised itself becomes a `RuntimeError`, and so does an exception of a
    kind of its own that is no `Exception`, which would end the program.

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
