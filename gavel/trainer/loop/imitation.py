"""Supervised training on given trajectories, one step for each batch: imitation, with the checkpoints of any other run.

What is trained in a step depends on the seed and the step alone, so a run goes on after its last finished step as if it
had not stopped.
"""

import hashlib
import json
import random
from collections.abc import Callable, Sequence

from gavel.scenarios.seeds import seed_of
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import SftConfig
from gavel.trainer.model import TrainableModel


def imitation_plan(count: int, epochs: int, batch_size: int, seed: int) -> list[list[int]]:
    """The indices of each step's trajectories: every epoch is a shuffled pass, cut into batches."""
    plan: list[list[int]] = []
    for epoch in range(epochs):
        order = [*range(count)]
        random.Random(seed_of(seed, "imitation", epoch)).shuffle(order)
        plan += [order[at : at + batch_size] for at in range(0, count, batch_size)]
    return plan


async def imitate(
    model: TrainableModel,
    trajectories: Sequence[Trajectory],
    config: SftConfig,
    *,
    seed: int = 0,
    stepped: Callable[[TrainResult], None] = lambda result: None,
) -> None:
    """Trains a registered model on `trajectories`, `config.epochs` times, from wherever it stands.

    Where `config` does not set them, the rate warms up over 3 steps and decays to zero at the end. `stepped` is called
    after each step. Raises `RunDirectoryError` when the run was begun with other trajectories or settings, and
    `DemonstrationError` for a malformed message.
    """
    plan = imitation_plan(len(trajectories), config.epochs, config.batch_size, seed)
    steps = len(plan)
    each_step = with_schedule(config, steps)
    described = config.model_dump(mode="json", exclude={"micro_batch_tokens", "gradient_checkpointing", "restart"})
    model.backend.pin(model, {"imitation": {"seed": seed, "trajectories": fingerprint(trajectories), **described}})
    while (step := await model.get_step()) < steps:
        stepped(await model.train_sft([trajectories[at] for at in plan[step]], each_step))


def with_schedule(config: SftConfig, steps: int) -> SftConfig:
    """The settings of one of `steps` steps: where they are not set, a warm-up over 3 of them and a decay to zero."""
    schedule = {"warmup_steps": min(3, steps - 1), "total_steps": steps}
    filled = {name: value for name, value in schedule.items() if name not in config.model_fields_set}
    return config.model_copy(update=filled | {"epochs": 1})


def fingerprint(trajectories: Sequence[Trajectory]) -> str:
    """A hash of what is imitated: the histories, whatever their scores."""
    digest = hashlib.sha256()
    for trajectory in trajectories:
        for history in trajectory.histories():
            digest.update(json.dumps([history.messages(), history.tools], sort_keys=True).encode())
    return digest.hexdigest()[:16]
