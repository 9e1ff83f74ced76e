"""A rollout that hands its trajectory over by `yield_trajectory`, not by its return value."""

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from gavel.scenarios.trajectory import Trajectory

_yielded: ContextVar[list[Trajectory]] = ContextVar("yielded_trajectories")


def yield_trajectory(trajectory: Trajectory) -> None:
    """Hands `trajectory` to the `capture_yielded_trajectory` around; the last one counts."""
    try:
        _yielded.get().append(trajectory)
    except LookupError:
        raise RuntimeError("yield_trajectory(…) works inside capture_yielded_trajectory(…) only") from None


async def capture_yielded_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Runs `coroutine`; gives the trajectory that it yielded. Raises `RuntimeError` when there is none."""
    yielded: list[Trajectory] = []
    token = _yielded.set(yielded)
    try:
        await coroutine
    finally:
        _yielded.reset(token)
    if not yielded:
        raise RuntimeError("no trajectory was yielded: call art.yield_trajectory(trajectory) in the rollout")
    return yielded[-1]
