"""Each step is trained once, to the same bits, whatever is cut or killed on the way."""

import asyncio
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
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.config import TrainConfig
from tests.backend_server import KEY, BackendServer, serving
from tests.cutting_proxy import CuttingProxy
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model, registered

STEPS = 6
CONFIG = TrainConfig(learning_rate=1e-3)
SCRIPT = """
import asyncio, sys
from pathlib import Path
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.trainer.backends.remote.test_kills import train_all
from gavel.trainer.backends.remote.client import RemoteBackend

groups = list(TrajectoryStore(sys.argv[2]))

async def main() -> None:
    async with RemoteBackend(sys.argv[1]) as backend:
        await train_all(backend, groups)

asyncio.run(main())
"""


async def train_all(backend: LocalBackend | RemoteBackend, groups: list[TrajectoryGroup]) -> None:
    """From the step on that the run is at."""
    model = a_model()
    await model.register(backend)
    for step in range(await model.get_step(), STEPS):
        result = await model.train([groups[step]], CONFIG)
        assert result.step == step + 1


def adapter(runs: Path) -> bytes:
    return (runs / "tests" / "clerk" / "checkpoints" / f"{STEPS:06d}" / "adapter_model.safetensors").read_bytes()


def trained_steps(runs: Path) -> list[int]:
    store = runs / "tests" / "clerk" / "trajectories" / "train"
    return [len(TrajectoryStore(store / f"{step:06d}.jsonl.zst")) for step in range(1, STEPS + 1)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TrajectoryGroup], bytes, float]:
    """A file of groups, the groups, the adapter after an uninterrupted run on them, and the seconds that it took."""
    runs = tmp_path_factory.mktemp("runs")

    async def record() -> list[TrajectoryGroup]:
        async with registered(runs, "sampler") as (sampler, _):
            return [await a_group(sampler, 0.0, 1.0, 0.5) for _ in range(STEPS)]

    groups = asyncio.run(record())
    store = TrajectoryStore(runs / "groups.jsonl.zst")
    store.extend(groups)
    began = time.monotonic()

    async def train() -> None:
        async with LocalBackend(runs) as backend:
            await train_all(backend, groups)

    asyncio.run(train())
    return store.path, groups, adapter(runs), time.monotonic() - began


@pytest.fixture
def server(tmp_path: Path) -> Generator[BackendServer]:
    server = BackendServer(tmp_path / "runs", tmp_path / "server.log")
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
        runs = tmp_path / str(seed)
        server = BackendServer(runs, tmp_path / "server.log")
        server.start()
        done = threading.Event()

        def interrupt(server: BackendServer = server, done: threading.Event = done, seed: int = seed) -> None:
            if not done.wait(random.Random(seed).uniform(0.2, 2.0) * seconds):
                server.kill()
                server.start()

        killer = threading.Thread(target=interrupt)
        killer.start()

        async def train(server: BackendServer = server) -> None:
            async with RemoteBackend(server.url, KEY) as backend:
                await train_all(backend, groups)

        try:
            asyncio.run(train())
        finally:
            done.set()
            killer.join()
            server.stop()
        assert adapter(runs) == expected
        assert trained_steps(runs) == [1] * STEPS


@pytest.mark.slow
@pytest.mark.thorough
def test_a_client_that_is_killed_at_any_moment_goes_on_and_trains_each_step_once(recorded, server, tmp_path):
    file, _, expected, seconds = recorded
    moments = random.Random(0)
    command = [sys.executable, "-c", SCRIPT, server.url, str(file)]
    environment = {**os.environ, "GAVEL_BACKEND_KEY": KEY, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in KILLS:
        client = subprocess.Popen(command, env=environment)
        try:
            client.wait(moments.uniform(0.3, 2.0) * seconds)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
    assert subprocess.run(command, env=environment, timeout=600).returncode == 0
    assert adapter(tmp_path / "runs") == expected
    assert trained_steps(tmp_path / "runs") == [1] * STEPS


@pytest.mark.slow
def test_a_line_that_is_slow_and_cut_again_and_again_costs_time_alone(recorded, tmp_path):
    _, groups, expected, _ = recorded
    runs = tmp_path / "runs"
    app = create_app(LocalBackend(runs), key=KEY, root=runs)
    with serving(app) as url, CuttingProxy(httpx.URL(url).port or 0, seed=1) as proxy:

        async def train() -> None:
            async with RemoteBackend(proxy.url, KEY) as backend:
                await train_all(backend, groups)

        asyncio.run(train())
        assert proxy.cuts >= 3
    assert adapter(tmp_path / "runs") == expected
    assert trained_steps(tmp_path / "runs") == [1] * STEPS
