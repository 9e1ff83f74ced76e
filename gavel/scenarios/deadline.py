"""Deadlines that also end user code which swallows its cancellation (`except:` in a retry loop).

    await unless_stuck(episode(), "the episode")
    await in_time(tool(), 5, "the tool")

The second is awaited anywhere in the first, which is one task: the tool is cancelled after 5 s, and GRACE_SECONDS later
the whole episode is given up.
"""

import asyncio
import ctypes
import logging
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
GRACE_SECONDS = 15.0
"""Seconds that cancelled code may take to clean up."""
_stuck: ContextVar["asyncio.Future[str] | None"] = ContextVar("stuck", default=None)


class StuckError(Exception):
    """Code did not end when it was cancelled, and was abandoned."""


class LateError(TimeoutError):
    """What `in_time` ran took too long."""


async def in_time(work: Awaitable[_T], seconds: float | None, what: str) -> _T:
    """The result of user code that must end within `seconds` (None = no limit).

    Raises `LateError` if it does not, also if it swallowed its cancellation or blocked the event loop.
    """
    loop, limit, stuck = asyncio.get_running_loop(), asyncio.timeout(seconds), _stuck.get()
    late = f"{what} took longer than {seconds or 0:g} s"

    def give_up() -> None:
        if stuck is not None and not stuck.done():
            stuck.set_result(f"{late}, and went on when it was cancelled")

    watch = None if seconds is None else loop.call_later(seconds + GRACE_SECONDS, give_up)
    try:
        async with limit:
            result = await work
    except (Exception, SystemExit) as error:
        if limit.expired():
            raise LateError(late) from error
        raise
    finally:
        if watch is not None:
            watch.cancel()
    if (end := limit.when()) is not None and loop.time() > end:
        raise LateError(late)
    return result


async def unless_stuck(work: Awaitable[_T], what: str) -> _T:
    """Awaits `work` and returns its result. Raises `StuckError` if a deadline in it (`in_time`) has passed and the code
    goes on.

    If cancelled, it waits `GRACE_SECONDS` for the work to end, and then abandons it with a warning about `what`.
    """

    async def whole() -> _T:
        return await work

    stuck: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    token = _stuck.set(stuck)
    task = asyncio.create_task(whole())
    _stuck.reset(token)
    try:
        await asyncio.wait({task, stuck}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        _abandon(task, what)
        raise
    if task.done():
        return task.result()
    task.cancel()
    _abandon(task)
    raise StuckError(stuck.result())


async def end_other_tasks() -> None:
    """Cancels the loop's other tasks; those that have not ended after `GRACE_SECONDS` are abandoned with a warning."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=GRACE_SECONDS)
    for task in others:
        if not task.done():
            _abandon(task, name_of(task))


def name_of(code: object) -> str:
    """The name of a function, or of a coroutine or task of it."""
    if isinstance(code, asyncio.Task):
        code = cast("asyncio.Task[Any]", code).get_coro()
    return getattr(code, "__qualname__", type(code).__qualname__)


def _abandon(task: "asyncio.Task[Any]", what: str = "") -> None:
    """Lets the loop end without the task: `asyncio.run` would wait forever for one that swallows every cancellation,
    and print that it was destroyed. Warns about `what` unless the caller reports it."""
    task.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved, since nobody else does
    if not task.done():
        if what:
            _LOG.warning(
                "%s went on when it was cancelled, and is left to itself: let asyncio.CancelledError through where it "
                "catches everything (except:)",
                what,
            )
        asyncio.tasks._unregister_task(task)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task._log_destroy_pending = False  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        # If freed, its coroutine would be closed; one that catches that too (`except:`) would loop forever.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
