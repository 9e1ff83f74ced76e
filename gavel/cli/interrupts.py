"""Ctrl-C in commands: the first lets a training step in progress finish, a second stops at once; no traceback.

Files are written so that a process may die at any moment: what a second Ctrl-C loses is the step in progress.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

import typer

from gavel.scenarios.deadline import end_other_tasks

RESUME = "Finished steps are saved; the same command goes on from there."
INTERRUPTED = 130

_SHOW_CURSOR = "\x1b[?25h"
Result = TypeVar("Result")


def run_interruptibly(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. Raises `KeyboardInterrupt` at a Ctrl-C, after `work` has been cancelled and has ended."""

    async def until_interrupted() -> Result:
        _stop_at_second_interrupt()
        try:
            return await work
        finally:
            await end_other_tasks()  # asyncio.run would wait for ever for one that swallows its cancellation

    before, main = signal.getsignal(signal.SIGINT), until_interrupted()
    try:
        return asyncio.run(main)
    finally:
        for begun_or_not in (main, work):  # Python warns of a coroutine that a Ctrl-C kept from beginning
            begun_or_not.close()
        if signal.getsignal(signal.SIGINT) is not _stop and _in_main_thread():
            signal.signal(signal.SIGINT, before)


def run_to_end(work: Coroutine[Any, Any, object], resume: str = "") -> None:
    """Runs `work`. Ctrl-C lets a training step in progress finish, prints `resume`, and exits with status 130."""
    try:
        run_interruptibly(work)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {resume}" if resume else "Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def stop_at_next_interrupt() -> None:
    """From now on Ctrl-C ends this process at once, with status 130."""
    if _in_main_thread():
        signal.signal(signal.SIGINT, _stop)


def _stop_at_second_interrupt() -> None:
    """The first Ctrl-C does what asyncio does with it, which cancels the main task; the second ends the process."""
    first = signal.getsignal(signal.SIGINT)
    if not callable(first) or not _in_main_thread():
        return

    seen = False

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:  # the second came before the lines below had run for the first
            _stop(number, frame)
        seen = True
        stop_at_next_interrupt()
        first(number, frame)

    signal.signal(signal.SIGINT, interrupted)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, lambda number, frame: None)  # a further one would say the same again
    shown = _SHOW_CURSOR if sys.stderr.isatty() else ""  # which a live display hides
    os.write(2, f"{shown}\nStopped at once. What was finished is kept.\n".encode())
    os._exit(INTERRUPTED)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
