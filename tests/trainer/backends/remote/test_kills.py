"""Each step is trained once, to the same bits, whatever is cut or killed on the way."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.config import TrainConfig
from tests.backend_server import KEY, BackendServer
from tests.cutting_proxy import CuttingProxy
from tests.trainer.backends.remote.conftest import served
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model, registered

STEPS = 6
CONFIG = TrainConfig(learning_rate=1e-3)
SCRIPT = """
import asyncio, sys
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.trainer.backends.remote.test_kills import train_remotely

asyncio.run(train_remotely(sys.argv[1], list(TrajectoryStore(sys.argv[2]))))
"""


async def train_all(backend: LocalBackend | RemoteBackend, groups: list[TrajectoryGroup]) -> None:
    model = a_model()
    await model.register(backend)
    for step in range(await model.get_step(), STEPS):
        result = await model.train([groups[step]], CONFIG)
        assert result.step == step + 1


async def train_remotely(url: str, groups: list[TrajectoryGroup]) -> None:
    async with RemoteBackend(url, KEY) as backend:
        await train_all(backend, groups)


def adapter(runs: Path) -> bytes:
    """Of the last step, each of which was trained once."""
    run = runs / "tests" / "clerk"
    steps = [TrajectoryStore(run / "trajectories/train" / f"{step:06d}.jsonl.zst") for step in range(1, STEPS + 1)]
    assert [len([*step]) for step in steps] == [1] * STEPS
    return (run / "checkpoints" / f"{STEPS:06d}" / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TrajectoryGroup], bytes, float]:
    """A file of groups, the groups, the adapter after an uninterrupted run on them, and the seconds that it took."""
    runs = tmp_path_factory.mktemp("runs")

    async def train() -> tuple[list[TrajectoryGroup], float]:
        async with registered(runs, "sampler") as (sampler, backend):
            groups = [await a_group(sampler, 0.0, 1.0, 0.5) for _ in range(STEPS)]
            began = time.monotonic()
            await train_all(backend, groups)
            return groups, time.monotonic() - began

    groups, seconds = asyncio.run(train())
    store = TrajectoryStore(runs / "groups.jsonl.zst")
    store.extend(groups)
    return store.path, groups, adapter(runs), seconds


@contextlib.contextmanager
def a_server(runs: Path) -> Generator[BackendServer]:
    server = BackendServer(runs, runs.with_suffix(".log"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


KILLS = range(6)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_server_that_is_killed_at_any_moment_trains_each_step_once(recorded, tmp_path):
    _, groups, expected, seconds = recorded
    for seed in KILLS:
        done = threading.Event()

        def interrupt(server: BackendServer, moment: float, done: threading.Event = done) -> None:
            if not done.wait(moment):
                server.kill()
                server.start()

        with a_server(tmp_path / str(seed)) as server:
            moment = random.Random(seed).uniform(0.2, 2.0) * seconds
            killer = threading.Thread(target=interrupt, args=(server, moment))
            killer.start()
            try:
                asyncio.run(train_remotely(server.url, groups))
            finally:
                done.set()
                killer.join()
        assert adapter(tmp_path / str(seed)) == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_client_that_is_killed_at_any_moment_goes_on_and_trains_each_step_once(recorded, tmp_path):
    file, _, expected, seconds = recorded
    moments = random.Random(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with a_server(tmp_path / "runs") as server:
        command = [sys.executable, "-c", SCRIPT, server.url, str(file)]
        for _ in KILLS:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed
                subprocess.run(command, env=environment, timeout=moments.uniform(0.3, 2.0) * seconds)
        assert subprocess.run(command, env=environment, timeout=600).returncode == 0
    assert adapter(tmp_path / "runs") == expected


@pytest.mark.slow
def test_a_line_that_is_slow_and_cut_again_and_again_costs_time_alone(recorded, tmp_path):
    _, groups, expected, _ = recorded
    with served(tmp_path / "runs") as url, CuttingProxy(httpx.URL(url).port or 0, seed=1) as proxy:
        asyncio.run(train_remotely(proxy.url, groups))
        assert proxy.cuts >= 3
    assert adapter(tmp_path / "runs") == expected
