"""Deadlines that hold, also for code of the user's that swallows its cancellation (`except:` in a loop of retries).

result = await unless_stuck(episode(), "the episode")      # everything below runs in one task
    async with Deadline(5, "the tool"): …   # cancelled after 5 s; after GRACE_SECONDS more, given up
"""

import asyncio
import ctypes
import logging
from collections.abc import Awaitable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, cast

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
GRACE_SECONDS = 15.0
"""That a cancelled block may take to clean up."""
_stuck: ContextVar["asyncio.Future[str] | None"] = ContextVar("stuck", default=None)
_given_up: set["asyncio.Task[Any]"] = set()
"""A loop has weak references to its tasks alone."""


class StuckError(Exception):
    """Code did not end when it was cancelled, and was left to itself."""


class Deadline:
    """As `asyncio.timeout`; a block that ends too late raises `TimeoutError` also where it swallowed its cancellation,
    or held up the event loop, so that it was not cancelled at all."""

    def __init__(self, seconds: float | None, what: str) -> None:
        """`what` must end: subject of a sentence."""
        self._seconds = seconds
        self._what = what
        self._limit = asyncio.timeout(seconds)
        self._watch: asyncio.TimerHandle | None = None
        self._is_late = False

    def expired(self) -> bool:
        return self._is_late or self._limit.expired()

    async def __aenter__(self) -> None:
        stuck = _stuck.get()
        if self._seconds is not None and stuck is not None:
            told = f"{self._what} took longer than {self._seconds:g} s, and went on when it was cancelled"
            self._watch = asyncio.get_running_loop().call_later(self._seconds + GRACE_SECONDS, _tell, stuck, told)
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._limit.__aexit__(kind, error, traceback)
        end = self._limit.when()
        self._is_late = error is None and end is not None and asyncio.get_running_loop().time() > end
        if error is None and self.expired():
            raise TimeoutError


async def unless_stuck(work: Awaitable[_T], what: str) -> _T:
    """What `work` gives. Raises `StuckError` when a `Deadline` in it is over and its block goes on nevertheless.

    Cancelled itself, it waits `GRACE_SECONDS` for the work to end, and then leaves it to itself with a warning, whose
    subject is `what`.
    """
    stuck: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    given_up = False

    async def silent_once_given_up() -> _T:
        try:
            return await work
        except Exception:
            if given_up:  # nobody waits for it any more, and asyncio would print what it raises
                return cast(_T, None)
            raise

    token = _stuck.set(stuck)
    task = asyncio.create_task(silent_once_given_up())
    _stuck.reset(token)
    try:
        await asyncio.wait({task, stuck}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        given_up = True
        _give_up(task)
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        _leave(task, what)
        raise
    if task.done():
        return task.result()
    given_up = True
    _give_up(task)
    _leave(task)
    raise StuckError(stuck.result())


async def end_other_tasks() -> None:
    """Cancels what else runs in this loop; what has not ended after `GRACE_SECONDS` is left to itself, and named."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=GRACE_SECONDS)
    for task in others:
        _leave(task, name_of(task))


def name_of(code: object) -> str:
    """Of a function, or of a coroutine or task of it."""
    if isinstance(code, asyncio.Task):
        code = cast("asyncio.Task[Any]", code).get_coro()
    return getattr(code, "__qualname__", type(code).__qualname__)


def _tell(stuck: "asyncio.Future[str]", told: str) -> None:
    if not stuck.done():
        stuck.set_result(told)


def _give_up(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    _given_up.add(task)
    task.add_done_callback(_forget)


def _leave(task: "asyncio.Task[Any]", what: str = "") -> None:
    """Lets the loop end without the task: `asyncio.run` would wait for ever for one that swallows every cancellation,
    and print that it was destroyed. Warns about `what`, where nothing else tells it."""
    if not task.done():
        if what:
            _LOG.warning(
                "%s went on when it was cancelled, and is left to itself: let asyncio.CancelledError through where it "
                "catches everything (except:)",
                what,
            )
        asyncio.tasks._unregister_task(task)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task._log_destroy_pending = False  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        # Freed, its coroutine would be closed; one that catches that too (`except:`) would loop for ever within.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def _forget(task: "asyncio.Task[Any]") -> None:
    _given_up.discard(task)
    if not task.cancelled():
        task.exception()  # nobody else asks for it
