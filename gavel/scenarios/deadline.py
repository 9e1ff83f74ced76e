"""Deadlines that also end user code which swallows its cancellation (`except:` in a retry loop).

result = await unless_stuck(episode(), "the episode")      # everything below runs in one task
    async with Deadline(5, "the tool"): …   # cancelled after 5 s; after GRACE_SECONDS more, given up
"""

import asyncio
import ctypes
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType, coroutine
from typing import Any, TypeVar, cast

from gavel.base.errors import contain_cancellation

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
GRACE_SECONDS = 15.0
"""Seconds that a cancelled block may take to clean up."""
_stuck: ContextVar["asyncio.Future[str] | None"] = ContextVar("stuck", default=None)
_given_up: set["asyncio.Task[Any]"] = set()
"""Strong references to abandoned tasks, since a loop holds weak ones."""
HELD_SECONDS = 1.0
"""Seconds for which code may block the event loop without a warning. Longer blocking counts against its own deadlines
only."""
_around: ContextVar[tuple["Deadline", ...]] = ContextVar("around", default=())
"""The deadlines around the current code."""
_running: set["Deadline"] = set()
"""The deadlines that are running, of all loops."""
_held: ContextVar[float] = ContextVar("held", default=0.0)
"""Seconds for which the current task has blocked the loop, as far as they are counted."""
_warned: set[str] = set()
"""Names of code that a warning about blocking has mentioned."""


class StuckError(Exception):
    """Code did not end when it was cancelled, and was abandoned."""


class LateError(TimeoutError):
    """What `in_time` ran took too long."""


class Deadline:
    """As `asyncio.timeout`, but a block that ends too late raises `TimeoutError` even if it swallowed its cancellation,
    or blocked the event loop so that it was not cancelled at all. Time during which other code blocked the loop
    (`watched`) does not count."""

    def __init__(self, seconds: float | None, what: str) -> None:
        """`what` must end: the subject of the error's sentence."""
        self._seconds = seconds
        self._what = what
        self._limit = asyncio.timeout(seconds)
        self._watch: asyncio.TimerHandle | None = None
        self._stuck: asyncio.Future[str] | None = None
        self.loop = asyncio.get_running_loop()
        self._is_late = False

    def expired(self) -> bool:
        return self._is_late or self._limit.expired()

    async def __aenter__(self) -> None:
        self._stuck = _stuck.get()
        if self._seconds is not None and self._stuck is not None:
            self._watch = self.loop.call_later(self._seconds + GRACE_SECONDS, self._give_up)
        await self._limit.__aenter__()
        _around.set((*_around.get(), self))
        _running.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _around.set(tuple(each for each in _around.get() if each is not self))
        _running.discard(self)
        if self._watch is not None:
            self._watch.cancel()
        await self._limit.__aexit__(kind, error, traceback)
        end = self._limit.when()
        self._is_late = error is None and end is not None and self.loop.time() > end
        if error is None and self.expired():
            raise TimeoutError

    def _give_up(self) -> None:
        if self._stuck is not None and not self._stuck.done():
            told = f"{self._what} took longer than {self._seconds:g} s, and went on when it was cancelled"
            self._stuck.set_result(told)

    def prolong(self, seconds: float) -> None:
        """Extends the deadline, unless it has passed."""
        end = self._limit.when()
        if end is None or self._limit.expired():
            return
        self._limit.reschedule(end + seconds)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = self.loop.call_at(self._watch.when() + seconds, self._give_up)


async def in_time(work: Awaitable[_T], seconds: float | None, what: str) -> _T:
    """The result of user code that must end within `seconds` (None = no limit), and that may cancel itself.

    Raises `LateError` if it does not, and what it raises (`contain_cancellation`).
    """
    limit = Deadline(seconds, what)
    try:
        async with limit:
            return await contain_cancellation(work)
    except (Exception, SystemExit) as error:
        if limit.expired():
            raise LateError(f"{what} took longer than {seconds:g} s") from error
        raise


async def unless_stuck(work: Awaitable[_T], what: str) -> _T:
    """Awaits `work` and returns its result. Raises `StuckError` if a `Deadline` in it has passed and its block goes on.

    If cancelled, it waits `GRACE_SECONDS` for the work to end, and then abandons it with a warning about `what`.
    """
    stuck: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    token = _stuck.set(stuck)
    task = asyncio.create_task(watched(work, what))
    _stuck.reset(token)
    try:
        await asyncio.wait({task, stuck}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        _give_up(task)
        await asyncio.wait({task}, timeout=GRACE_SECONDS)
        _abandon(task, what)
        raise
    if task.done():
        return task.result()
    _give_up(task)
    _abandon(task)
    raise StuckError(stuck.result())


@contextmanager
def holding(name: str) -> Generator[None]:
    """Times synchronous code, which blocks the event loop: blocking for long extends every deadline that the code is
    not within, and warns once about `name` (if it has one)."""
    started, held = time.monotonic(), _held.get()
    try:
        yield
    finally:
        took = time.monotonic() - started - (_held.get() - held)  # time counted by inner blocks is not counted twice
        if took > HELD_SECONDS:
            _held.set(_held.get() + took)
            _count_for_no_other(took)
            if name and name not in _warned:
                _warned.add(name)
                _LOG.warning(
                    "%s took %.1f s, in which it held up the event loop, and no other episode went on. Write it as an "
                    "async function that waits with await alone, and computes by await asyncio.to_thread(…).",
                    name,
                    took,
                )


def _count_for_no_other(seconds: float) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a coroutine that is closed after its loop
        return
    for each in _running.difference(_around.get()):
        if each.loop is loop:
            each.prolong(seconds)


async def watched(work: Awaitable[_T], name: str) -> _T:
    """Awaits `work` with each of its steps timed by `holding`, and returns its result: between two steps the event loop
    is free. Tasks that it starts are not timed."""

    async def whole() -> _T:
        return await work

    return await _time_steps(whole(), name)


@coroutine
def _time_steps(work: Coroutine[Any, Any, _T], name: str) -> Generator[Any, Any, _T]:
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            with holding(name):
                awaited = step(value)
        except StopIteration as end:
            return end.value
        try:
            step, value = work.send, (yield awaited)
        except BaseException as error:
            step, value = work.throw, error


async def end_other_tasks() -> None:
    """Cancels the loop's other tasks; those that have not ended after `GRACE_SECONDS` are abandoned with a warning."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=GRACE_SECONDS)
    for task in others:
        _abandon(task, name_of(task))


def name_of(code: object) -> str:
    """The name of a function, or of a coroutine or task of it."""
    if isinstance(code, asyncio.Task):
        code = cast("asyncio.Task[Any]", code).get_coro()
    return getattr(code, "__qualname__", type(code).__qualname__)


def _give_up(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    _given_up.add(task)
    task.add_done_callback(_forget)


def _abandon(task: "asyncio.Task[Any]", what: str = "") -> None:
    """Lets the loop end without the task: `asyncio.run` would wait forever for one that swallows every cancellation,
    and print that it was destroyed. Warns about `what` unless the caller reports it."""
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


def _forget(task: "asyncio.Task[Any]") -> None:
    _given_up.discard(task)
    if not task.cancelled():
        task.exception()  # its exception is retrieved here, since nobody else does
