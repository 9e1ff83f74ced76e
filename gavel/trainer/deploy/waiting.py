"""Waiting until a host has done something that it does in its own time.

The caller bounds the wait: `deploy` runs a host within one deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gavel.trainer.deploy.host import Report

T = TypeVar("T")
PAUSE = 5.0
"""Seconds between two looks."""
_SAYS_AGAIN = 60.0


async def until(look: Callable[[], Awaitable[tuple[T | None, str]]], what: str, report: Report) -> T:
    """The first result of `look` that is not None; its second value is the state, reported when it changes."""
    told, silent = "", 0.0
    while True:
        found, state = await look()
        if found is not None:
            return found
        if state != told or silent >= _SAYS_AGAIN:
            report(f"waiting for {what}: {state}")
            told, silent = state, 0.0
        await asyncio.sleep(PAUSE)
        silent += PAUSE
