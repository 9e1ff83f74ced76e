"""Supervised training on given trajectories, one step for each batch: imitation, with the checkpoints of any other run.

What is trained in a step depends on the seed and the step alone, so a run goes on after its last finished step as if it
had not stopped.

Which members of judged groups are worth imitating.

    chosen = choose_best_members(groups, best=1, above=0.7)
    chosen.trajectories        the best member of each group, where its score is above 0.7

Imitating the best of several attempts is rejection sampling (best of n; RAFT, arXiv 2304.06767).
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import SftConfig
from gavel.trainer.model import TrainableModel


@dataclass(slots=True)
class BestMembers:
    """The members that were chosen, in the order of the groups, and how many were not, by reason."""

    trajectories: list[Trajectory] = field(default_factory=list[Trajectory])
    scored: int = 0
    """Members with a score, of all groups."""
    unscored: int = 0
    """Members without a finite score, and failed ones."""
    too_low: int = 0
    """Among their group's best, but not above the threshold."""
    not_best: int = 0
    groups: int = 0
    """Groups of which at least one member was chosen."""
    alike: int = 0
    """Groups without a best member: all scores are equal, and only the first members were chosen."""


def choose_best_members(groups: Iterable[TrajectoryGroup], best: int = 1, above: float | None = None) -> BestMembers:
    """The `best` members of each group by score, if their score is greater than `above`.

    Of members with equal scores the earlier one comes first; groups that are left without a best one are counted. A
    member without a finite score is never chosen.
    """
    chosen = BestMembers()
    for group in groups:
        scored = [
            (member.reward, member)
            for member in group
            if member.reward is not None and math.isfinite(member.reward) and member.status != "failed"
        ]
        chosen.scored += len(scored)
        chosen.unscored += len(group) - len(scored)
        ranked = sorted(scored, key=lambda pair: -pair[0])
        chosen.not_best += len(ranked[best:])
        taken = [member for score, member in ranked[:best] if above is None or score > above]
        chosen.trajectories += taken
        chosen.too_low += len(ranked[:best]) - len(taken)
        if taken:
            chosen.groups += 1
            chosen.alike += len(ranked) > best and ranked[0][0] == ranked[-1][0]
    return chosen


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
    each_step = with_schedule(config, len(plan))
    settings = {"seed": seed, "steps": len(plan), "trajectories": fingerprint(trajectories), **describe_sft(config)}
    model.backend.pin(model, {"imitation": settings})
    while (step := await model.get_step()) < len(plan):
        stepped(await model.train_sft([trajectories[at] for at in plan[step]], each_step))


def describe_sft(config: SftConfig) -> dict[str, Any]:
    """The settings that a run is pinned to."""
    return config.model_dump(mode="json", exclude={"micro_batch_tokens", "gradient_checkpointing", "restart"})


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
