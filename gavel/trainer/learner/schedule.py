"""The learning rate of a training step: warm-up, then constant, linear or cosine decay to zero."""

import math

from gavel.trainer.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a training step, counted from 0: linear warm-up, then constant or decaying to zero."""
    warm = min(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.total_steps is None:
        return config.learning_rate * warm
    left = (config.total_steps - step) / max(1, config.total_steps - config.warmup_steps)
    left = min(1.0, max(0.0, left))
    if config.decay == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return config.learning_rate * min(warm, left)
