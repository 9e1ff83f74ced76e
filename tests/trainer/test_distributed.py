"""Several processes learn what one learns, fail as one, and leave behind what one takes up again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from scenarios.trajectory import TrajectoryGroup
from tests.trainer.processes import led
from tests.trainer.test_learner import adapter, flat, make_batch, make_sequences
from tests.trainer.test_local import a_group, a_model
from trainer import learner as learner_room
from trainer.config import LoraSettings, SamplerCorrection, TrainConfig
from trainer.distributed import World, WorldError
from trainer.embedded import EMBEDDED_POLICY
from trainer.learner import LearnerError
from trainer.local import LocalBackend
from trainer.policy import BaseModelError
from trainer.team import Team

LORA = LoraSettings(rank=4)
CONFIG = TrainConfig(learning_rate=1e-3, micro_batch_tokens=40)
MANY_UPDATES = TrainConfig(
    learning_rate=1e-3,
    epochs=2,
    mini_batches=2,
    micro_batch_tokens=40,
    beta=0.1,
    sampler_correction=SamplerCorrection(),
    gradient_checkpointing=True,
    weight_decay=0.01,
)
LENGTHS = [5, 20, 11, 3, 20, 8]
ADVANTAGES = [0.5, -0.5, 0.25, -0.25, 1.0, -1.0]


def three_steps(world: World, config: TrainConfig, sharded: bool = False) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Of three groups, of three groups, of a single one."""
    team = Team(world, EMBEDDED_POLICY, LORA, sharded=sharded)
    tokens = make_sequences(Team(World(), EMBEDDED_POLICY, LORA).policy, LENGTHS)
    whole, single = make_batch(tokens, ADVANTAGES), make_batch(tokens[:2], ADVANTAGES[:2])
    metrics = [team.step(batch, config) for batch in (whole, whole, single)]
    assert torch.isfinite(team.logprobs(tokens[0])).all()
    team.close()
    return flat(adapter(team.policy)), metrics


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {"one update": three_steps(World(), CONFIG), "many updates": three_steps(World(), MANY_UPDATES)}


def compare(found: tuple[torch.Tensor, list[dict[str, float]]], expected: tuple[torch.Tensor, list[Any]]) -> None:
    assert (found[0] - expected[0]).abs().max() < 1e-5
    for one, other in zip(found[1], expected[1], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_processes_and_two_nodes_of_two_learn_what_one_learns(alone: dict[str, Any], nodes: int) -> None:
    compare(led(three_steps, MANY_UPDATES, nodes=nodes), alone["many updates"])


@pytest.mark.parametrize("kind", ["one update", "many updates"])
def test_over_a_sharded_base_the_same_is_learnt_though_the_processes_have_unequal_work(
    alone: dict[str, Any], kind: str
) -> None:
    found = led(three_steps, CONFIG if kind == "one update" else MANY_UPDATES, True)
    compare(found, alone[kind])
