"""Trains a model on a queue's groups, the oldest batch first, until its last step.

    waiting groups -> trajectories -> (judge) -> log-probs that the environment did not send -> train -> next adapter

A step's trajectories are in its checkpoint's run directory under the numbers of their groups, so a server that was
killed between checkpoint and queue knows which groups it has trained: each is trained once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gavel.integrations.atropos.group import AtroposGroup
from gavel.integrations.atropos.queue import GroupQueue, choose_at_least
from gavel.judge.judge import Judge
from gavel.scenarios.gather import gather_group
from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import TrainConfig
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.loop.watchdog import LoopError, stop_at_outage
from gavel.trainer.model import TrainableModel

logger = logging.getLogger(__name__)

NUMBER = "atropos_group"
"""Group metadata: its number in the queue."""
STALENESS, COMPUTED, SENT_SCORE = "atropos/steps_waited", "atropos/logprobs_computed", "environment_score"
Stepped = Callable[[TrainResult, list[TrajectoryGroup]], None]


_KEPT_CHECKPOINTS = 3
"""Number of newest checkpoints that are kept."""


@dataclass(eq=False)
class AtroposLearner:
    """Takes batches from a queue."""

    model: TrainableModel
    backend: LocalBackend
    queue: GroupQueue
    config: TrainConfig
    steps: int
    """Training steps of the run."""
    batch_size: int
    """Min sequences of a step; groups are never split."""
    wait_seconds: float = 3600.0
    """Seconds without enough groups after which the run ends with an error."""
    judge: Judge | None = None
    """Rescores the groups; the environment's scores become a metric."""
    stepped: Stepped = lambda result, groups: None
    """Called after each step."""

    async def run(self) -> None:
        """Trains until the last step. Raises `LoopError` if no groups arrive, and at an outage of the judge."""
        await self._note_trained()
        await self.backend.prepare(self.model, self.config)
        while await self.model.get_step() < self.steps:
            ids = await self._next_batch()
            stored = await asyncio.to_thread(self.queue.read, ids)
            groups, metrics = await self._prepare(ids, stored)
            result = await self.model.train(groups, self.config, metrics=metrics)
            await asyncio.to_thread(self.queue.trained, ids, result.step)
            self.stepped(result, groups)
            await self.model.delete_checkpoints(keep_last=_KEPT_CHECKPOINTS, keep_best=0)

    async def _note_trained(self) -> None:
        """Removes the newest checkpoint's groups from the queue, if the server was killed before it could."""
        step = await self.model.get_step()
        done = await self.backend.logged(self.model, "train", step)
        ids = [number for group in done if isinstance(number := group.metadata.get(NUMBER), int)]
        await asyncio.to_thread(self.queue.trained, ids, step)

    async def _next_batch(self) -> list[int]:
        """The groups of the next batch, once there are enough."""
        queue, wanted = self.queue, self.batch_size
        while (chosen := choose_at_least(queue.waiting, wanted)) is None:
            queue.changed.clear()
            try:
                await asyncio.wait_for(queue.changed.wait(), self.wait_seconds)
            except TimeoutError:
                raise LoopError(
                    f"no group came for {self.wait_seconds:g} s, and "
                    f"{sum(group.size for group in queue.waiting)} of {wanted} sequences wait",
                    "Look at the environments' logs, and start the server again: it goes on where it is.",
                ) from None
        return [group.id for group in chosen]

    async def _prepare(
        self, ids: Sequence[int], stored: Sequence[tuple[AtroposGroup, int]]
    ) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        step = await self.model.get_step()
        decode = self.backend.token_space(self.model).decode
        groups = [
            group.trajectories(decode, {NUMBER: number, "env_id": group.env_id, "accepted_at_step": accepted})
            for number, (group, accepted) in zip(ids, stored, strict=True)
        ]
        waited = [step - accepted for _, accepted in stored]
        metrics = {f"{STALENESS}/mean": sum(waited) / len(waited), f"{STALENESS}/max": float(max(waited))}
        metrics[COMPUTED] = float(await self._complete_logprobs(groups))
        if self.judge is not None:
            groups = await self._judged(self.judge, groups)
        return groups, metrics

    async def _judged(self, judge: Judge, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        for trajectory in (trajectory for group in groups for trajectory in group):
            trajectory.metrics[SENT_SCORE] = trajectory.reward or 0.0
            trajectory.reward = None
        judged = list(await asyncio.gather(*(gather_group(group, judge.score) for group in groups)))
        stop_at_outage(judge, judged)
        return judged

    async def _complete_logprobs(self, groups: Sequence[TrajectoryGroup]) -> int:
        """Gives turns without log-probs those of the live policy, so that their ratio is 1; returns the number of
        tokens.

        That is exact only if the policy has not been updated since it sampled them.
        """
        count = 0
        for group in groups:
            members = [[choice.model_extra or {} for choice in member.choices()] for member in group]
            lacking = [turns for turns in members if any("token_logprobs" not in turn for turn in turns)]
            values = await self.backend.logprobs(self.model, [*map(_sequence, lacking)]) if lacking else []
            for turns, found in zip(lacking, values, strict=True):
                rest = iter(found)
                for turn in turns:
                    turn["token_logprobs"] = [*islice(rest, len(turn["token_ids"]))]
                count += len(found)
        return count


def _sequence(turns: Sequence[dict[str, Any]]) -> TokenSequence:
    """The turns' single token sequence, with log-probs still unknown."""
    sequence = TokenSequence()
    for turn in turns:
        sequence.extend(turn["prompt_token_ids"][len(sequence.token_ids) :])
        sequence.extend(turn["token_ids"], logprobs=[0.0] * len(turn["token_ids"]), temperature=turn["temperature"])
    return sequence
