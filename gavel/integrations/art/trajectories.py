"""Trajectories as ART's scripts build them: an initial reward of 0.0, durations, and messages with content.

A group is Gavel's own. A trajectory that the judge failed to score is removed from the group (see rewards.ruler).
"""

import time
from collections.abc import Coroutine, Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Self

from pydantic import Field, PrivateAttr

import gavel.scenarios.trajectory as core
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup as TrajectoryGroup
from gavel.scenarios.trajectory import RolloutError

PydanticException = RolloutError


def get_messages(messages_and_choices: Iterable[Any]) -> list[Message]:
    """The conversation as message dicts, each with content."""
    return [message | {"content": message.get("content") or ""} for message in core.to_messages(messages_and_choices)]


class History(core.History):
    """An additional conversation of the same trajectory."""

    def messages(self) -> list[Message]:
        return get_messages(self.messages_and_choices)


class Duration:
    """Adds a block's seconds to a metric; for `with` and `async with`."""

    def __init__(self, metrics: dict[str, float | int | bool], key: str) -> None:
        self._metrics, self._key = metrics, key
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        self._metrics[self._key] = self._metrics.get(self._key, 0.0) + time.monotonic() - self._started

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *exception: object) -> None:
        self.__exit__()


class Trajectory(core.Trajectory):
    """One attempt; scripts may subclass it with further fields."""

    reward: float | None = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    start_time: datetime = Field(default_factory=datetime.now, exclude=True)

    _began: float = PrivateAttr(default_factory=time.monotonic)

    def messages(self) -> list[Message]:
        return get_messages(self.messages_and_choices)

    def finish(self) -> Self:
        """Stores the seconds since the trajectory was created in `metrics["duration"]`."""
        self.metrics["duration"] = time.monotonic() - self._began
        return super().finish()

    def track_duration(self, metric_name: str) -> Duration:  # type: ignore[override]
        """Adds the block's seconds to `metrics["<metric_name>_duration"]`, in `with` and in `async with`."""
        return Duration(self.metrics, f"{metric_name}_duration")

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"


_yielded: ContextVar[list[core.Trajectory]] = ContextVar("yielded_trajectories")


def yield_trajectory(trajectory: core.Trajectory) -> None:
    """Passes `trajectory` to the enclosing `capture_yielded_trajectory`; the last one counts."""
    try:
        _yielded.get().append(trajectory)
    except LookupError:
        raise RuntimeError("yield_trajectory(…) works inside capture_yielded_trajectory(…) only") from None


async def capture_yielded_trajectory(coroutine: Coroutine[Any, Any, Any]) -> core.Trajectory:
    """Runs `coroutine`; returns the trajectory that it yielded. Raises `RuntimeError` if there is none."""
    yielded: list[core.Trajectory] = []
    token = _yielded.set(yielded)
    try:
        await coroutine
    finally:
        _yielded.reset(token)
    if not yielded:
        raise RuntimeError("no trajectory was yielded: call art.yield_trajectory(trajectory) in the rollout")
    return yielded[-1]
