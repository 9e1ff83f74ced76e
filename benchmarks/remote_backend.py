"""What a server in between costs: `RemoteBackend` on loopback beside `LocalBackend`.

    python benchmarks/remote_backend.py [--rounds 5] [--megabytes 50]

Interleaved rounds of one step on the same task: rollouts (a group of 8 for each of 8 tasks of returns_desk) and
training, by wall clock and CPU seconds of all processes; then the upload of a serialised batch of the given size, also
in times that hashing the same file takes, which other work on the machine slows as well.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from gavel.cli.demo_session import run_own_backend
from gavel.scenarios.gather import gather_trajectory_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import Backend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.remote.connection import BatchFile
from gavel.trainer.config import TrainConfig
from gavel.trainer.model import TrainableModel

_TASKS, _MEMBERS = 8, 8


async def step(model: TrainableModel, number: int) -> float:
    """Wall seconds of one step."""
    scenario = find_scenario("returns_desk")
    began = time.perf_counter()
    groups = await gather_trajectory_groups(
        [
            TrajectoryGroup(rollout(model, scenario, task, seed=100 * number + member) for member in range(_MEMBERS))
            for task in scenario.tasks("train")[:_TASKS]
        ],
        pbar_desc=None,
    )
    for group in groups:
        for place, member in enumerate(group):
            member.reward = place / _MEMBERS
    await model.train(groups, TrainConfig(learning_rate=1e-5))
    return time.perf_counter() - began


async def measure(rounds: int, megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as runs:
        async with (
            LocalBackend(Path(runs, "local"), slots=64, max_context=1024) as local,
            run_own_backend(Path(runs, "remote"), slots=64, max_context=1024) as remote,
        ):
            models = [await registered(backend) for backend in (local, remote)]
            seconds: list[list[float]] = [[], []]
            for number in range(rounds + 1):  # the first one warms up
                for model, found in zip(models, seconds, strict=True):
                    found.append(await step(model, number))
            here, there = (statistics.median(found[1:]) for found in seconds)
            ratio = statistics.median(b / a for a, b in zip(seconds[0][1:], seconds[1][1:], strict=True))
            print(f"step, median of {rounds}: local {here:.2f} s, remote {there:.2f} s, ratio {ratio:.2f} (bar 1.25)")
            await asyncio.to_thread(upload, remote, Path(runs), megabytes)


async def registered(backend: Backend) -> TrainableModel:
    model = TrainableModel(name="clerk", project="bench", base_model="embedded/returns-desk")
    await model.register(backend)
    return model


def upload(remote: RemoteBackend, directory: Path, megabytes: int) -> None:
    rates: list[float] = []
    hashings: list[float] = []
    for _ in range(5):
        file = directory / "batch"
        file.write_bytes(os.urandom(megabytes << 20))
        before = time.perf_counter()
        batch = BatchFile.of(file)
        began = time.perf_counter()
        remote.connection.upload(batch)
        seconds = time.perf_counter() - began
        rates.append(megabytes * 1.048576 / seconds)
        hashings.append(seconds / (began - before))
    print(f"upload of {megabytes} MiB, median of 5: {statistics.median(rates):.0f} MB/s (bar 200)")
    print(f"  {statistics.median(hashings):.1f} times what hashing the file takes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=50)
    options = parser.parse_args()
    asyncio.run(measure(options.rounds, options.megabytes))
