"""What scripts build a gather of their own with: a context that counts failures, and a wrapper for each rollout.

    with set_gather_context(GatherContext(max_exceptions=1)):
        results = await asyncio.gather(*[wrap_group_awaitable(game) for game in games])    # None where one was borne

The bar of `context.pbar` may be set after the wrapped rollouts were made, and before they are awaited.
"""

from collections.abc import Awaitable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

Group = TypeVar("Group", bound=Iterable[Any])
"""A group, or the tuple of trajectories that a game with several players gives."""


class Bar(Protocol):
    """What is used of tqdm's."""

    total: Any

    def update(self, n: float | None = 1, /) -> Any: ...


@dataclass
class GatherContext:
    """One gather: its progress bar, and how many failures it bears."""

    pbar: Bar | None = None
    max_exceptions: int | float = 0
    """A count; between 0 and 1, a share of the bar's total."""
    max_metrics: int | None = None
    """Has no effect: the bar shows how many are done."""
    increment_pbar: bool = True
    exceptions: int = 0
    """Failures so far."""

    def update_pbar(self, n: int) -> None:
        """Adds `n` trajectories to the bar, if there is one."""
        if self.pbar is not None and self.increment_pbar:
            self.pbar.update(n)

    def too_many_exceptions(self) -> bool:
        """Whether there were more failures than the gather bears."""
        if 0 < self.max_exceptions < 1 and self.pbar is not None and self.pbar.total:
            return self.exceptions > self.max_exceptions * self.pbar.total
        return self.exceptions > self.max_exceptions


_context: ContextVar[GatherContext | None] = ContextVar("gather_context", default=None)


@contextmanager
def set_gather_context(context: GatherContext) -> Generator[None]:
    """Makes `context` that of the rollouts that are wrapped within."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def get_gather_context() -> GatherContext:
    """The context of the gather around; outside of one, a new one that bears no failure."""
    return _context.get() or GatherContext()


async def wrap_group_awaitable(awaitable: Awaitable[Group]) -> Group | None:
    """What `awaitable` gives, or None for a failure that the context bears."""
    context = get_gather_context()
    try:
        group = await awaitable
    except Exception:
        if _counts(context):
            raise
        return None
    context.update_pbar(len(group) if isinstance(group, TrajectoryGroup) else len(list(group)))
    return group


async def wrap_trajectories_awaitable(
    awaitable: Awaitable[Trajectory | Iterable[Trajectory]],
) -> Trajectory | list[Trajectory] | Exception:
    """The trajectory, the list of those that one rollout gave, or a failure that the context bears."""
    context = get_gather_context()
    try:
        result = await awaitable
        result = result if isinstance(result, Trajectory) else list(result)
    except Exception as error:
        if _counts(context):
            raise
        return error
    context.update_pbar(1)
    return result


def _counts(context: GatherContext) -> bool:
    """Counts a failure; whether it is one too many."""
    context.exceptions += 1
    return context.too_many_exceptions()
