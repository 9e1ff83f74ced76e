"""One attempt at a task while it runs: what the world and the tools may know of it.

A parameter of a tool, of a method of an environment or of an own rollout that is annotated `Episode` is given it; the
agent is not shown it.

"""

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue
from random import Random, SystemRandom
from typing import Any, TypeVar

from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_T = TypeVar("_T")
_Outcome = tuple[Any, BaseException | None]


class PlainCalls:
    """Runs plain functions off the event loop. Its thread begins with the first of them."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._work.put, None)  # the thread of one that nobody closes ends too

    async def run(self, function: Callable[[], _T], *, must: bool = False) -> _T:
        """What the function gives, or raises. Cancelled, it goes on in its thread, or is not begun.

        `must`: it is begun all the same, once the thread is free.
        """
        if self._thread is None:
            # A daemon, since the program must not wait at its end for a function that hangs.
            self._thread = threading.Thread(target=_run_all, args=[self._work], name="gavel-plain-calls", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[_Outcome] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            if asked.cancelled() and not must:
                return
            outcome = _outcome(context, function)
            try:
                loop.call_soon_threadsafe(_tell, asked, outcome)
            except RuntimeError:  # the loop is closed: nobody waits
                return

        self._work.put(work)
        result, error = await asked
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Ends the thread once it has nothing to do."""
        self._work.put(None)


def _run_all(queue: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (work := queue.get()) is not None:
        work()


def _outcome(context: contextvars.Context, function: Callable[[], Any]) -> _Outcome:
    try:
        return context.run(function), None
    except BaseException as error:  # raised where the function is waited for
        return None, error


def _tell(asked: "asyncio.Future[_Outcome]", outcome: _Outcome) -> None:
    if not asked.done():
        asked.set_result(outcome)


@dataclass(slots=False)
class Episode:
    """One attempt at a task."""

    task: Task
    trajectory: Trajectory = field(default_factory=Trajectory)
    """What was said and done so far; it grows."""
    seed: int | None = None
    """The same for the same place in a run; None: the episode cannot be repeated."""
    temperature: float = 1.0
    """That the agent's turns are to be sampled with."""
    max_tokens: int | None = None
    """Of each turn of the agent, at most."""
    model: ChatModel | None = None
    """The policy that acts."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of each request to the policy, besides."""
    agents: list[str] = field(default_factory=list[str])
    """Names of the `Agent`s so far."""
    call_seconds: float | None = None
    """That a call of a tool may take, at most."""
    plain_calls: PlainCalls = field(default_factory=PlainCalls, repr=False, compare=False)
    """Where tools that are plain functions run."""

    @cached_property
    def random(self) -> Random:
        """Chance for the world: the same numbers for the same seed."""
        return SystemRandom() if self.seed is None else Random(f"world {self.seed}")

    @property
    def turns(self) -> int:
        """Turns that the agent has had."""
        return sum(1 for _ in self.trajectory.choices())
