"""A run that is killed, at whatever moment, ends as if it had never been: to the last bit of adapter and optimiser."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_flatten

from benchmarks.determinism import adapter_hash
from gavel.judge.judge import Judge
from gavel.scenarios.gather import gather_trajectory_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.config import LoraSettings, TrainConfig
from gavel.trainer.runs.checkpoints import Checkpoints
from tests.forkserver import forking
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import a_model, registered

pytestmark = pytest.mark.slow

KILLED = -signal.SIGKILL
STEPS = 3


@dataclass(frozen=True)
class Runs:
    recorded: Path
    directory: Path

    def live(self, name: str, killed_at: int = 0) -> int:
        """The status that one life of a run ended with, negative for a signal.

        Each goes on from where the last one was killed: in front of its `killed_at`th change to a file of the run; 0
        lets it finish.
        """
        arguments = self.recorded, self.directory, name, killed_at
        process = forking().Process(target=_live, args=arguments, daemon=True)
        process.start()
        process.join(HANG_SECONDS)
        assert process.exitcode is not None, "a run does not end"
        return process.exitcode

    def path(self, name: str) -> Path:
        return self.directory / "tests" / name

    def checkpoints(self, name: str) -> Checkpoints:
        return Checkpoints(self.path(name) / "checkpoints")

    def rows(self, name: str, split: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.path(name) / "metrics.jsonl").read_text().splitlines())
        own = [row for row in lines if row["split"] == split]
        return [{k: v for k, v in row.items() if k != "time" and not k.startswith("publish_")} for row in own]

    def assert_same(self, name: str, other: str) -> None:
        one, two = (self.checkpoints(each).path(STEPS) for each in (name, other))
        assert_equal(load_file(one / "adapter_model.safetensors"), load_file(two / "adapter_model.safetensors"))
        assert_equal(*(torch.load(each / "trainer_state" / "state.pt")["learner"] for each in (one, two)))
        for split in ("train", "val"):
            assert self.rows(name, split) == self.rows(other, split)
        assert [row["step"] for row in self.rows(name, "train")] == list(range(1, STEPS + 1))
        for file in (self.path(other) / "trajectories").rglob("*.zst"):
            twin = self.path(name) / file.relative_to(self.path(other))
            assert [g.to_json() for g in TrajectoryStore(twin)] == [g.to_json() for g in TrajectoryStore(file)]


def assert_equal(one: Any, other: Any) -> None:
    (leaves, tree), (others, same) = tree_flatten(one), tree_flatten(other)
    assert tree == same
    for pair in zip(leaves, others, strict=True):
        assert type(pair[0]) is type(pair[1])
        assert torch.equal(*pair) and pair[0].dtype == pair[1].dtype if torch.is_tensor(pair[0]) else pair[0] == pair[1]


async def record(directory: Path) -> list[TrajectoryGroup]:
    scenario = find_scenario("returns_desk")
    judge = Judge("stand-in", rubric=scenario.rubric)
    async with registered(directory, "sampler", max_context=512) as (model, _):
        play, tasks = partial(rollout, model, scenario, max_tokens=48), scenario.tasks("train")[:8]
        groups = await gather_trajectory_groups(
            (TrajectoryGroup(play(task, seed=seed_of(0, task.id, n)) for n in range(4)) for task in tasks),
            after_each=judge.score,
        )
    return [group for group in groups if len({member.reward for member in group}) > 1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    file = directory / "groups.jsonl.zst"
    TrajectoryStore(file).extend(asyncio.run(record(directory)))
    assert len([*TrajectoryStore(file)]) >= 4
    return file


@pytest.fixture(scope="module")
def runs(recorded: Path) -> Runs:
    return Runs(recorded, recorded.parent / "runs")


def test_a_run_that_is_killed_in_front_of_every_change_to_its_files_ends_the_same(runs: Runs) -> None:
    place, reached = 0, 0
    assert runs.live("whole") == 0
    while runs.live("swept", place + 1) == KILLED:
        place += 1
        for saved in runs.checkpoints("swept").steps():
            assert runs.checkpoints("swept")._problem(saved) is None, f"kill {place} left step {saved} half there"
        latest = runs.checkpoints("swept").latest() or 0
        assert latest >= reached
        reached = latest
    assert place > 15
    runs.assert_same("swept", "whole")


def test_one_command_gives_one_adapter_killed_or_not(tmp_path: Path) -> None:
    hashes: list[str] = []
    for number, kill_after in enumerate([None, None, 0.1]):
        directory = tmp_path / str(number)
        directory.mkdir()
        hashes.append(adapter_hash(directory, steps=3, kill_after=kill_after))
    assert len(set(hashes)) == 1


CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
OF_THE_WHOLE = 40
"""Steps that the schedule is made for, wherever a life ends."""


async def train(groups: Path, runs: Path, name: str) -> None:
    recorded = list(TrajectoryStore(groups))
    config = TrainConfig(
        learning_rate=1e-3, warmup_steps=2, total_steps=OF_THE_WHOLE, decay="cosine", epochs=2, mini_batches=2
    )
    async with registered(runs, a_model(name, lora=LoraSettings(rank=4)), slots=4, max_context=512) as (model, backend):
        while True:
            step = await model.get_step()
            if not any(row["step"] == step for row in backend.history(model, "val")):
                await model.log([recorded[step % len(recorded)]], "val")
            if step >= STEPS:
                return
            await model.train([recorded[(2 * step + at) % len(recorded)] for at in range(2)], config)
            await model.delete_checkpoints(keep_last=2)


def die_at(count: int, below: Path) -> None:
    """Ends this process like a SIGKILL from outside, in front of its `count`-th change to a file of the run."""
    left = count

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        inside = str(arguments[0]).startswith(str(below)) if arguments else False
        if event == "open":
            _, _, flags = arguments
            changes = inside and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        else:
            changes = event in CHANGES and (inside or not str(arguments[0]).startswith("/"))  # relative: to a folder
        if changes:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def _live(groups: Path, runs: Path, name: str, killed_at: int) -> None:
    if killed_at:
        die_at(killed_at, runs / "tests" / name)
    asyncio.run(train(groups, runs, name))
    os._exit(0)
