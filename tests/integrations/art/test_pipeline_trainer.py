"""The pipeline trainer: what is trained, evaluated, left out, and which checkpoints stay."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gavel.integrations.art as art
from gavel.integrations.art.local import LocalBackend
from gavel.integrations.art.pipeline_trainer import (
    PipelineRuntimeConfig,
    PipelineTrainer,
    keep_recent_and_top,
    make_group_rollout_fn,
)
from gavel.integrations.art.types import LocalTrainResult
from gavel.scenarios.gather import GatherError

pytestmark = pytest.mark.slow


class Counting:
    """A backend that trains nothing, and a model of it."""

    def __init__(self) -> None:
        self.step = 0
        self.batches: list[list[str]] = []
        self.logged: dict[str, int] = {}
        self.state: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}

    async def train(self, model: Any, groups: list[art.TrajectoryGroup], **settings: Any) -> LocalTrainResult:
        self.step += 1
        self.settings = settings
        self.batches.append([str(group.metadata["scenario_id"]) for group in groups])
        return LocalTrainResult(self.step)

    async def get_step(self) -> int:
        return self.step

    async def log(self, items: list[Any], *, split: str, metrics: Any = None, step: int | None = None) -> None:
        self.logged[split] = self.logged.get(split, 0) + len(items)
        self.metrics = metrics or self.metrics

    def read_state(self) -> dict[str, Any]:
        return self.state

    def merge_state(self, state: dict[str, Any]) -> None:
        self.state |= state


def scenarios(count: int | None = None) -> Iterator[dict[str, Any]]:
    numbers = itertools.count() if count is None else iter(range(count))
    return ({"number": number, "metadata": {"scenario_id": str(number)}} for number in numbers)


async def of_unequal(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
    await asyncio.sleep(0)
    return art.TrajectoryGroup([art.Trajectory(reward=0.0), art.Trajectory(reward=1.0)])


def a_trainer(counting: Counting, rollout_fn: Any = of_unequal, **settings: Any) -> "PipelineTrainer[Any, Any]":
    given = {"scenarios": scenarios(), "config": None, "num_rollout_workers": 2, "min_batch_size": 2} | settings
    return PipelineTrainer(model=counting, backend=counting, rollout_fn=rollout_fn, **given)  # type: ignore[arg-type]


async def test_groups_with_equal_rewards_are_logged_apart_and_end_a_run_in_which_there_are_no_others() -> None:
    async def sometimes(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([art.Trajectory(reward=0.0), art.Trajectory(reward=float(scenario["number"] % 2))])

    async def never(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([art.Trajectory(reward=1.0), art.Trajectory(reward=1.0)])

    counting = Counting()
    await a_trainer(counting, sometimes, scenarios=scenarios(8)).train()
    assert sorted(itertools.chain(*counting.batches)) == ["1", "3", "5", "7"]
    assert counting.logged["discarded"] >= 1
    stopped = Counting()
    await a_trainer(stopped, never, discard_queue_multiplier=2).train()
    assert stopped.step == 0


async def test_a_group_whose_rollouts_all_failed_ends_the_run() -> None:
    async def fails(model: Any, scenario: dict[str, Any], config: Any) -> art.Trajectory:
        raise ValueError("no key")

    with pytest.raises(GatherError, match="no key"):
        await a_trainer(Counting(), make_group_rollout_fn(fails, 3)).train()


async def test_the_policy_is_evaluated_at_the_start_and_every_so_many_steps_and_a_failure_is_borne() -> None:
    seen: list[int] = []

    async def evaluate(model: Any, step: int, config: Any) -> Any:
        seen.append(step)
        if step == 2:
            raise RuntimeError("no world")
        return {"val": [art.Trajectory(reward=1.0)], "hard": [art.Trajectory(reward=0.0)] * 2}

    counting = Counting()
    await a_trainer(counting, eval_fn=evaluate, eval_every_n_steps=2, max_steps=4).train()
    assert seen == [0, 2, 4]
    assert (counting.logged["val"], counting.logged["hard"]) == (2, 4)


async def test_groups_that_were_begun_too_many_steps_ago_are_not_trained() -> None:
    counting, first_is_slow = Counting(), asyncio.Event()

    async def slow(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        if scenario["number"] == 0:
            await first_is_slow.wait()
        elif counting.step >= 3:
            first_is_slow.set()
        return await of_unequal(model, scenario, config)

    await a_trainer(counting, slow, min_batch_size=1, max_batch_size=1, max_steps_off_policy=1, max_steps=8).train()
    assert "0" not in itertools.chain(*counting.batches)
    assert counting.metrics["discarded_stale_groups"] >= 1


async def test_the_embedded_model_is_trained_forked_and_trained_on(tmp_path: Path) -> None:
    async def play(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        question: list[Any] = [{"role": "user", "content": "Where is order 1001?"}]
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=question, max_tokens=4, n=2
        )
        turns = enumerate(completion.choices)
        return art.TrajectoryGroup([art.Trajectory(messages_and_choices=[*question, t], reward=r) for r, t in turns])

    sizes = PipelineRuntimeConfig(num_rollout_workers=2, min_batch_size=1, max_batch_size=1)
    async with LocalBackend(path=str(tmp_path)) as backend:
        model = art.TrainableModel[None](name="first", project="p", base_model="embedded/returns-desk")
        await model.register(backend)
        trainer = PipelineTrainer(
            model, backend, play, scenarios(), None,
            pipeline=sizes, max_steps=4, checkpoint_retention_strategy=keep_recent_and_top(recent=1, top=0),
        )  # fmt: skip
        await trainer.train()
        kept = (tmp_path / "p" / "first" / "checkpoints").iterdir()
        assert sorted(entry.name for entry in kept) == ["000003", "000004"]
        fork = art.TrainableModel[None](name="second", project="p", base_model="embedded/returns-desk")
        await backend._experimental_fork_checkpoint(fork, from_model="first")  # pyright: ignore[reportPrivateUsage]
        await fork.register(backend)
        assert await fork.get_step() == 4
        await PipelineTrainer(fork, backend, play, scenarios(), None, pipeline=sizes, max_steps=1).train()
    assert await fork.get_step() == 5
    with pytest.raises(ValueError, match="at least 0"):
        keep_recent_and_top(top=-1)


async def test_a_run_goes_on_with_the_scenario_after_the_last_one() -> None:
    counting = Counting()
    await a_trainer(counting, scenarios=scenarios(4)).train()
    await a_trainer(counting, scenarios=scenarios(6)).train()
    assert sorted(itertools.chain(*counting.batches)) == [str(number) for number in range(6)]
    await a_trainer(counting, scenarios=scenarios(2), resume=False).train()
    assert sorted(counting.batches[-1]) == ["0", "1"]


async def test_a_stop_that_is_asked_for_ends_the_run_after_the_step_in_progress() -> None:
    counting = Counting()
    trainer = a_trainer(counting)

    async def stopping(model: Any, step: int, config: Any) -> Any:
        if step == 1:
            trainer.request_stop()
        return [art.Trajectory(reward=1.0)]

    trainer.eval_fn, trainer.eval_every_n_steps = stopping, 1
    await trainer.train()
    assert counting.step == 1
