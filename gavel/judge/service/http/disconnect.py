"""Waiting for an answer only as long as there is somebody to answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from gavel.judge.service.http.problems import Problem

_T = TypeVar("_T")
UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Header of answers that come in pieces: nginx hands each on at once."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; it is cancelled when the client closes the connection. Its body must have been read."""
    waiting = asyncio.current_task()
    assert waiting is not None
    is_gone = False

    def end(_: "asyncio.Task[None]") -> None:
        nonlocal is_gone
        is_gone = True
        waiting.cancel()

    watch = asyncio.create_task(_disconnected(receive))
    watch.add_done_callback(end)
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and not waiting.uncancel():
            raise Problem(400, "incomplete", "the connection was closed before the answer was there.") from None
        raise
    finally:
        watch.remove_done_callback(end)
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
