"""A learner that takes batches from a queue: what it trains, in what order, and what a restart does."""

from pathlib import Path
from typing import Any

import pytest

from gavel.integrations.atropos.group import AtroposGroup
from gavel.integrations.atropos.learner import COMPUTED, NUMBER, SENT_SCORE, AtroposLearner
from gavel.integrations.atropos.queue import GroupQueue
from gavel.judge.judge import Judge
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import TrainConfig
from gavel.trainer.loop.watchdog import LoopError
from gavel.trainer.model import TrainableModel
from tests.integrations.judges import WorthJudge
from tests.trainer.conftest import registered

pytestmark = pytest.mark.slow
CONFIG = TrainConfig(learning_rate=1e-3)


def a_group(number: int, **changes: Any) -> AtroposGroup:
    """Four members of one prompt; the first is the best."""
    tokens = [[5 + number, 6, 7, 20 + member, 8, 30 + member] for member in range(4)]
    masks = [[-100, -100, -100, row[3], -100, row[5]] for row in tokens]
    said = [(f"Task {number}", f"first {member}", "Go on.", f"second, worth {member}0") for member in range(4)]
    roles = ("user", "assistant") * 2
    messages = [[{"role": role, "content": text} for role, text in zip(roles, row, strict=True)] for row in said]
    fields = {"tokens": tokens, "masks": masks, "scores": [1.0, 0.0, 0.0, 0.0], "messages": messages}
    return AtroposGroup.model_validate(fields | changes)


class Trained:
    """A model, its queue and what its learner did."""

    def __init__(self, backend: LocalBackend, model: TrainableModel, queue: GroupQueue) -> None:
        self.backend, self.model, self.queue = backend, model, queue

    async def until(self, steps: int, judge: Judge | None = None, wait_seconds: float = 60.0) -> None:
        await AtroposLearner(self.model, self.backend, self.queue, CONFIG, steps, 8, wait_seconds, judge).run()

    async def numbers(self, step: int) -> list[object]:
        return [group.metadata[NUMBER] for group in await self.backend.logged(self.model, "train", step)]

    def rows(self) -> list[dict[str, Any]]:
        return self.backend.history(self.model, "train")


@pytest.fixture
async def trained(tmp_path: Path):
    async with registered(tmp_path, max_context=512) as (model, backend):
        yield Trained(backend, model, GroupQueue(tmp_path / "queue.sqlite", backend.token_space(model)))


async def test_batches_are_the_oldest_groups_and_unknown_log_probs_are_those_of_the_policy(trained: Trained):
    trained.queue.accept([a_group(number) for number in range(4)])
    await trained.until(2)
    assert [await trained.numbers(step) for step in (1, 2)] == [[1, 2], [3, 4]]
    first, second = trained.rows()
    assert (first["trajectories_trained"], first[COMPUTED]) == (8, 16)
    assert (first["atropos/steps_waited/mean"], second["atropos/steps_waited/mean"]) == (0, 1)
    assert trained.queue.waiting == []
    (group, _) = await trained.backend.logged(trained.model, "train", 1)
    for trajectory in group:
        for choice in trajectory.choices():
            assert all(value < 0 for value in choice.model_extra["token_logprobs"])


async def test_a_group_that_the_checkpoint_holds_is_not_trained_again(trained: Trained):
    trained.queue.accept([a_group(number) for number in range(4)])
    kept = trained.queue.trained
    trained.queue.trained = lambda ids, step: None  # as if the server was killed before the queue was told
    await trained.until(1)
    trained.queue.trained = kept
    assert len(trained.queue.waiting) == 4
    await trained.until(2)
    assert [await trained.numbers(step) for step in (1, 2)] == [[1, 2], [3, 4]]


async def test_a_judge_scores_anew_and_the_environments_score_stays_a_metric(trained: Trained):
    trained.queue.accept([a_group(0), a_group(1)])
    await trained.until(1, WorthJudge())
    (group, _) = await trained.backend.logged(trained.model, "train", 1)
    assert [trajectory.metrics[SENT_SCORE] for trajectory in group] == [1.0, 0.0, 0.0, 0.0]
    assert group.judgement is not None
    rewards = [trajectory.reward for trajectory in group]
    assert rewards == sorted(rewards)
    assert rewards[0] < rewards[-1]


async def test_a_run_without_groups_ends_and_says_so(trained: Trained):
    trained.queue.accept([a_group(0)])
    with pytest.raises(LoopError, match="4 of 8 sequences wait"):
        await trained.until(1, wait_seconds=0.1)
