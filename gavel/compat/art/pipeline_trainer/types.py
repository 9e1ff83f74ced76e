"""What a pipeline is given: rollouts, evaluations, and which checkpoints stay."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from gavel.compat.art.model import TrainableModel
from gavel.compat.art.trajectories import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.runs.checkpoint_retention import steps_to_keep

Scenario = TypeVar("Scenario")
Config = TypeVar("Config")
RolloutFn = Callable[[TrainableModel[Any], Scenario, Config], Awaitable[TrajectoryGroup]]
SingleRolloutFn = Callable[[TrainableModel[Any], Scenario, Config], Awaitable[Trajectory]]
Evaluated = list[Trajectory | TrajectoryGroup] | list[Trajectory] | list[TrajectoryGroup]
EvalFn = Callable[[TrainableModel[Any], int, Config], Awaitable[Evaluated | dict[str, Evaluated]]]
"""Gives the trajectories of the policy of a step, or those of several splits by name."""


class CheckpointInfo(BaseModel):
    step: int
    path: str
    created_at: datetime
    is_eval_step: bool = False
    metrics: dict[str, float] = Field(default_factory=dict)
    """Of the step's rows of metrics.jsonl, as `split/name`."""


class CheckpointRetentionContext(BaseModel):
    current_step: int
    checkpoints: list[CheckpointInfo] = Field(default_factory=list[CheckpointInfo])
    """Those that may be deleted."""


CheckpointRetentionStrategy = Callable[[CheckpointRetentionContext], Iterable[int]]
"""Gives the steps of the context's checkpoints that stay."""


def keep_recent_and_top(*, recent: int = 5, top: int = 2, metric: str = "val/reward") -> CheckpointRetentionStrategy:
    """Keeps the newest `recent` checkpoints, and the `top` ones with the highest `metric`."""
    if recent < 0 or top < 0:
        raise ValueError("recent and top are at least 0")

    def kept(context: CheckpointRetentionContext) -> set[int]:
        steps = sorted(info.step for info in context.checkpoints)
        values = {info.step: info.metrics[metric] for info in context.checkpoints if metric in info.metrics}
        return steps_to_keep(steps, values, keep_last=recent, keep_best=top)

    return kept


def make_group_rollout_fn(single_rollout_fn: SingleRolloutFn[Any, Any], n: int = 4) -> RolloutFn[Any, Any]:
    """A rollout of a whole group: `n` of one trajectory each, at once; those that fail are its exceptions."""

    async def of_group(model: TrainableModel[Any], scenario: Any, config: Any) -> TrajectoryGroup:
        rollouts = (single_rollout_fn(model, scenario, config) for _ in range(n))
        return TrajectoryGroup(await asyncio.gather(*rollouts, return_exceptions=True))

    return of_group
