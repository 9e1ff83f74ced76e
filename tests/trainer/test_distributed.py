"""Several processes learn what one learns, fail as one, and leave behind what one takes up again."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoraSettings, Ppo, SamplerCorrection, TrainConfig
from gavel.trainer.distributed import World, WorldError
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner import learner as learner_room
from gavel.trainer.learner.learner import LearnerError
from gavel.trainer.learner.replicas import LearnerReplicas
from gavel.trainer.policy.policy import BaseModelError, Policy
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import a_group, a_model, adapter_file, registered
from tests.trainer.learner.test_learner import flat, make_batch, make_sequences
from tests.trainer.processes import led

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LORA = LoraSettings(rank=4)
CONFIG = TrainConfig(learning_rate=1e-3, micro_batch_tokens=40)
MANY = {"epochs": 2, "mini_batches": 2, "beta": 0.1, "gradient_checkpointing": True, "weight_decay": 0.01}
CONFIGS = {
    "one update": CONFIG,
    "many updates": CONFIG.model_copy(update={**MANY, "sampler_correction": SamplerCorrection()}),
    "a value head": CONFIG.model_copy(update={"loss": Ppo(), "mini_batches": 2}),
}
LENGTHS = [5, 20, 11, 3, 20, 8]
ADVANTAGES = [0.5, -0.5, 0.25, -0.25, 1.0, -1.0]


def three_steps(
    world: World, config: TrainConfig, sharded: bool = False
) -> tuple[torch.Tensor, list[dict[str, float]]]:
    team = LearnerReplicas(world, EMBEDDED_POLICY, LORA, sharded=sharded)
    tokens = make_sequences(LearnerReplicas(World(), EMBEDDED_POLICY, LORA).policy, LENGTHS)
    whole, single = make_batch(tokens, ADVANTAGES), make_batch(tokens[:2], ADVANTAGES[:2])
    for batch in (whole, single):
        batch.sequences = [replace(s, rewards=[s.advantage] * s.tokens.trained_tokens) for s in batch.sequences]
    metrics = [team.step(batch, config) for batch in (whole, whole, single)]
    assert torch.isfinite(team.logprobs(tokens[0])).all()
    team.close()
    return flat(team.policy.adapter_weights()), metrics


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {kind: three_steps(World(), config) for kind, config in CONFIGS.items()}


@pytest.mark.parametrize(
    ("kind", "nodes", "sharded"),
    [("one update", 2, False), *itertools.product(["many updates", "a value head"], [1], [False, True])],
)
def test_two_processes_and_two_nodes_of_two_learn_what_one_learns(alone: dict[str, Any], kind, nodes, sharded) -> None:
    found, expected = led(three_steps, CONFIGS[kind], sharded, nodes=nodes), alone[kind]
    assert (found[0] - expected[0]).abs().max() < 1e-5
    for one, other in zip(found[1], expected[1], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def saved_over_shards(world: World, directory: Path) -> tuple[list[str], list[torch.Tensor]]:
    policy = LearnerReplicas(world, EMBEDDED_POLICY, LORA, sharded=True).policy
    policy.save_adapter(directory)
    return [type(parameter).__name__ for parameter in policy.decoder().layers[0].parameters()], policy.adapter_weights()


def test_over_a_sharded_base_the_adapter_is_whole_and_is_saved_as_ever(tmp_path: Path, fresh_policy: Policy) -> None:
    kinds, expected = led(saved_over_shards, tmp_path)
    assert {"DTensor", "Parameter"} == set(kinds)
    with torch.no_grad():
        for parameter in fresh_policy.parameters():
            parameter.zero_()
    fresh_policy.load_adapter(tmp_path)
    assert all(torch.equal(*pair) for pair in zip(fresh_policy.adapter_weights(), expected, strict=True))


def a_follower_fails_once(rank: int) -> None:
    score = learner_room.trained_scores

    def fails(*arguments: Any) -> Any:
        learner_room.trained_scores = score
        raise torch.OutOfMemoryError("CUDA out of memory")

    if rank:
        learner_room.trained_scores = fails


def a_step_that_fails_in_one(world: World) -> tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]:
    with pytest.raises(BaseModelError, match="nowhere"):
        LearnerReplicas(world, "nowhere/nothing", LORA)
    team = LearnerReplicas(world, EMBEDDED_POLICY, LORA)  # the processes are ready for another
    tokens = make_sequences(team.policy, LENGTHS)
    batch = make_batch(tokens, ADVANTAGES)
    before = flat(team.policy.adapter_weights())
    with pytest.raises(LearnerError) as caught:
        team.step(batch, CONFIG)
    failed = flat(team.policy.adapter_weights())
    team.step(batch, CONFIG)
    return str(caught.value), before, failed, flat(team.policy.adapter_weights())


def test_what_fails_in_one_process_fails_in_all_and_the_next_step_is_made_by_all() -> None:
    message, before, failed, after = led(a_step_that_fails_in_one, prepare=a_follower_fails_once)
    assert all(words in message for words in ("unique tokens", "process 1 of 2", "micro_batch_tokens"))
    assert torch.equal(before, failed)
    team = LearnerReplicas(World(), EMBEDDED_POLICY, LORA)
    team.step(make_batch(make_sequences(team.policy, LENGTHS), ADVANTAGES), CONFIG)
    assert (flat(team.policy.adapter_weights()) - after).abs().max() < 1e-5


def a_follower_dies(rank: int) -> None:
    if rank:
        learner_room.trained_scores = lambda *arguments: os._exit(1)


def a_step_that_loses_one(world: World) -> tuple[str, str]:
    team = LearnerReplicas(world, EMBEDDED_POLICY, LORA)
    batch = make_batch(make_sequences(team.policy, LENGTHS), ADVANTAGES)
    with pytest.raises(WorldError) as first:
        team.step(batch, CONFIG)
    with pytest.raises(WorldError) as second:
        team.step(batch, CONFIG)
    team.close()
    return str(first.value), str(second.value)


def test_a_process_that_dies_is_missed_at_once_and_nothing_waits_for_it_afterwards() -> None:
    first, second = led(a_step_that_loses_one, prepare=a_follower_dies)
    assert "is gone" in first
    assert "is lost" in second


def train(world: World, runs: Path, groups: list[TrajectoryGroup], steps: int) -> None:
    async def make_steps() -> None:
        async with registered(runs) as (model, _):
            for _ in range(steps):
                await model.train(groups, TrainConfig(learning_rate=1e-4))

    asyncio.run(make_steps())


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    async def sample() -> list[TrajectoryGroup]:
        async with registered(tmp_path, "sampler") as (model, _):
            return [await a_group(model, rewards) for rewards in ([0.0, 1.0], [0.3, 0.1, 0.9], [1.0, 0.0])]

    groups = asyncio.run(sample())
    train(World(), tmp_path / "through", groups, 3)
    led(train, tmp_path / "fewer", groups, 2)
    train(World(), tmp_path / "fewer", groups, 1)
    train(World(), tmp_path / "more", groups, 1)
    led(train, tmp_path / "more", groups, 2)
    expected, *others = (load_file(adapter_file(tmp_path / each, 3)) for each in ("through", "fewer", "more"))
    for found in others:
        assert found.keys() == expected.keys()
        assert all((found[name] - expected[name]).abs().max() < 1e-5 for name in found)


async def test_the_embedded_engine_cannot_sample_from_a_base_in_shards(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="--engine vllm"):
        await a_model().register(LocalBackend(tmp_path, shard_base=True))
    assert not (tmp_path / "tests").exists()


def test_gavel_train_starts_several_processes_of_which_one_speaks_and_writes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gavel", "train", "returns_desk", "--judge", "stand-in", "--nproc", "2"]
    small = ["--steps", "1", "--tasks", "3", "--group-size", "3", "--max-tokens", "32", "--evaluation-tasks", "3"]
    environment = os.environ | {"GAVEL_RUNS": str(tmp_path), "WANDB_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    result = subprocess.run([*command, *small], capture_output=True, text=True, timeout=HANG_SECONDS, env=environment)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout.count("step 1/1 ") == result.stdout.count("3 held-out tasks") == 1
    rows = (tmp_path / "returns_desk" / "returns-desk" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["split"] for row in rows].count("train") == 1
