"""Waiting for an answer only as long as there is somebody to answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from gavel.judge.service.http.problems import Problem

_T = TypeVar("_T")
UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Header of answers that come in pieces: nginx hands each on at once."""


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; it is cancelled when the client closes the connection. Its body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(request))
    gone.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise Problem(400, "incomplete", "the connection was closed before the answer was there.") from None
        task.cancel()
        raise
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
