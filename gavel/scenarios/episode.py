"""One attempt at a task while it runs: what the world and the tools may know of it.

A parameter of a tool, of a method of an environment or of an own rollout that is annotated `Episode` is given it; the
agent is not shown it.

"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random, SystemRandom
from typing import Any

from gavel.base.plain_calls import PlainCalls
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


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
