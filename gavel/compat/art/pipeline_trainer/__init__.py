"""ART's pipeline: rollouts go on while groups that are done are trained, and the policy is evaluated between steps."""

from gavel.compat.art.pipeline_trainer.trainer import PipelineRuntimeConfig, PipelineTrainer
from gavel.compat.art.pipeline_trainer.types import (
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    EvalFn,
    RolloutFn,
    SingleRolloutFn,
    keep_recent_and_top,
    make_group_rollout_fn,
)

__all__ = [
    "CheckpointInfo",
    "CheckpointRetentionContext",
    "CheckpointRetentionStrategy",
    "EvalFn",
    "PipelineRuntimeConfig",
    "PipelineTrainer",
    "RolloutFn",
    "SingleRolloutFn",
    "keep_recent_and_top",
    "make_group_rollout_fn",
]
