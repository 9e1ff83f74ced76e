"""Runs the members of a group, which are awaitables of trajectories, concurrently and bounded; a failure affects one
member only.

`member_runner` runs one member in the current context; `gather` sets it to bound (`MemberBound`) and count the members
that run.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar

from gavel.llm.cancellation import contain_cancellation
from gavel.scenarios.trajectory import Trajectory

Member = Trajectory | BaseException | Awaitable[Trajectory]
MemberRunner = Callable[[Awaitable[Trajectory]], Awaitable[Trajectory]]


async def run_member(member: Awaitable[object]) -> Trajectory:
    """Runs one member, unbounded. Raises `TypeError` if it returns anything but a trajectory."""
    trajectory = await contain_cancellation(member)
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"a rollout must return a Trajectory; this one returned {type(trajectory).__name__}")
    return trajectory


member_runner: ContextVar[MemberRunner] = ContextVar("member_runner", default=run_member)


class MemberBound:
    """At most so many members run at once, of all groups of one `gather`; None = all of them."""

    def __init__(self, concurrency: int | None) -> None:
        self._slots: AbstractAsyncContextManager[None] = (
            nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
        )
        self.run = member_runner.get()
        """Runs a member as it would be run without this bound."""

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Waits until one more member may run."""
        async with self._slots:
            # A group that a rollout runs within itself must not wait for a slot: the rollout holds one.
            member_runner.set(run_member)
            yield


async def run_members(members: Sequence[Member]) -> tuple[list[Trajectory | BaseException], BaseException | None]:
    """Runs all members concurrently; gives what each returned or raised, in input order, and what stopped the whole.

    Stopped, as by a cancellation, the members that had finished are kept, and the others have raised CancelledError.
    """
    run = member_runner.get()
    stopped: BaseException | None = None
    outcomes: list[Trajectory | BaseException] = [
        member if isinstance(member, Trajectory | BaseException) else asyncio.CancelledError("it had not finished")
        for member in members
    ]

    async def fill_in(at: int, member: Awaitable[Trajectory]) -> None:
        try:
            outcomes[at] = await run(member)
        except Exception as error:
            outcomes[at] = error

    try:
        async with asyncio.TaskGroup() as tasks:
            for at, member in enumerate(members):
                if not isinstance(member, Trajectory | BaseException):
                    tasks.create_task(fill_in(at, member))
    except BaseException as error:
        stopped = error
    finally:
        for member in members:  # a cancelled task may never have reached its member
            discard(member)
    return outcomes, stopped


def discard(awaitable: object) -> None:
    """Closes a coroutine that never ran, or cancels a task. A finished one is left unchanged."""
    match awaitable:
        case Coroutine():
            awaitable.close()
        case asyncio.Future():
            awaitable.cancel()
        case _:
            pass
