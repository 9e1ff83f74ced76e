"""Cancellation from outside is obeyed; a cancellation that foreign code makes within itself is an ordinary error."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def contained(awaitable: Awaitable[T]) -> T:
    """Awaits `awaitable`; a cancellation that it raised itself becomes a `RuntimeError`.

    Only a cancellation of the running task passes through. A rollout that cancels itself (a cancel scope of its HTTP
    client, say) would otherwise cancel its whole group without a trace.
    """
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("it was cancelled from within") from error
