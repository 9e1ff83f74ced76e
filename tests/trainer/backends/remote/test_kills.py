"""Each step is trained once, to the same bits, whatever is cut or killed on the way."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.judge.judge import Judge
from gavel.judge.panel.judgements import Progress
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.server.app import create_app
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.train_loop import Observer, StepReport, train_scenario
from gavel.trainer.model import TrainableModel
from tests.backend_server import KEY, BackendServer, serving
from tests.cutting_proxy import CuttingProxy
from tests.forkserver import forking
from tests.limits import HANG_SECONDS
from tests.trainer.backends.test_conformance import a_group, a_model

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
        async with LocalBackend(runs) as backend:
            sampler = TrainableModel(name="sampler", project="tests", base_model=EMBEDDED_POLICY)
            await sampler.register(backend)
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


KILLS = range(10)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_server_that_is_killed_at_any_moment_trains_each_step_once(
    recorded: tuple[Path, list[TrajectoryGroup], bytes, float], tmp_path: Path
) -> None:
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
def test_a_client_that_is_killed_at_any_moment_goes_on_and_trains_each_step_once(
    recorded: tuple[Path, list[TrajectoryGroup], bytes, float], server: BackendServer, tmp_path: Path
) -> None:
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
def test_a_line_that_is_slow_and_cut_again_and_again_costs_time_alone(
    recorded: tuple[Path, list[TrajectoryGroup], bytes, float], tmp_path: Path
) -> None:
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


TASKS, MEMBERS = 2, 4


class LiveRun:
    """The client of one run; `judged` gets a line for every group that was judged, `stepped` for every step."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self.judged, self.stepped, self.log = (directory / name for name in ("judged", "stepped", "client.log"))
        for file in (self.judged, self.stepped):
            file.touch()

    def start(self) -> BaseProcess:
        """Returns when the model is registered, or the process has ended."""
        context = forking()
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=self._live, args=(sender,), daemon=True)
        process.start()
        sender.close()
        try:
            receiver.recv()
        except EOFError:
            process.join()
        return process

    def _live(self, sender: Connection) -> None:
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        asyncio.run(self._train(sender))

    async def _train(self, sender: Connection) -> None:
        scenario = find_scenario("returns_desk")
        model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
        loop = LoopConfig(
            steps=STEPS,
            tasks_per_step=TASKS,
            group_size=MEMBERS,
            max_tokens=24,
            evaluate_every=2,
            evaluation_tasks=2,
            final_tasks=2,
            keep_checkpoints=STEPS,
        )
        async with RemoteBackend(self._url, KEY) as backend:
            await model.register(backend)
            sender.send("registered")
            judge = _MarkingJudge("stand-in", rubric=scenario.rubric)
            judge.file = self.judged
            await train_scenario(model, scenario, judge, loop, TrainConfig(learning_rate=1e-3), _Steps(self.stepped))


class _MarkingJudge(Judge):
    """Gives each group a mark, and notes it."""

    file: Path

    async def score(
        self, group: TrajectoryGroup, *, noise_prior: NoisePrior | None = None, progress: Progress | None = None
    ) -> TrajectoryGroup:
        judged = await super().score(group, noise_prior=noise_prior, progress=progress)
        mark = uuid.uuid4().hex
        judged.metadata["mark"] = mark
        _append(self.file, mark)
        return judged


class _Steps(Observer):
    def __init__(self, file: Path) -> None:
        self._file = file

    def stepped(self, report: StepReport) -> None:
        _append(self._file, str(report.result.step))


def _append(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(line + "\n")


_MOST_SECONDS = 2.5
"""Of a life in the middle of a run."""
_LIVES = 40


@contextmanager
def a_server(directory: Path) -> Generator[BackendServer]:
    server = BackendServer(directory / "runs", directory / "server.log")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def lives_until_the_end(run: LiveRun, moments: random.Random, kills: int) -> None:
    """Kills the client `kills` times, and lets it end then."""
    for life in range(_LIVES):
        client = run.start()
        client.join(moments.uniform(0.1, _MOST_SECONDS) if life < kills else HANG_SECONDS)
        if client.exitcode is not None:
            assert client.exitcode == 0, run.log.read_text()
            return
        assert life < kills, f"the run hangs: {run.log.read_text()}"
        client.kill()
        client.join()
    raise AssertionError("the run does not end")


@contextmanager
def being_killed(server: BackendServer, run: LiveRun, moments: random.Random, kills: int) -> Generator[None]:
    """The server is killed and started again, as long as the block runs; once a step at most."""
    ended = threading.Event()

    def kill() -> None:
        for number in range(kills):
            while not ended.is_set() and len(run.stepped.read_text().split()) < number * STEPS // kills:
                time.sleep(0.05)
            if ended.wait(moments.uniform(0.1, _MOST_SECONDS)):
                return
            server.kill()
            server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        ended.set()
        killer.join()


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "runs/tests/clerk/metrics.jsonl").read_text().splitlines()]


def assert_each_step_once(directory: Path) -> list[str]:
    """Gives the marks of the groups that were trained."""
    run = directory / "runs" / "tests" / "clerk"
    times = Counter((row["split"], row["step"]) for row in rows(directory))
    assert [times["train", step] for step in range(STEPS + 2)] == [0, *[1] * STEPS, 0]
    assert [times["held_out", step] for step in range(STEPS + 1)] == [1, 0, 1, 0, 1, 0, 1]
    assert all(times["times", step] <= 2 for step in range(STEPS + 1))  # of the step, and of its evaluation
    assert times["noise_prior", 0] <= 1
    done = Counter[int]()
    for line in (run / "jobs.jsonl").read_text().splitlines():
        done.update([entry["done"]["step"]] if "trained" in (entry := json.loads(line)).get("done", {}) else [])
    assert done == dict.fromkeys(range(1, STEPS + 1), 1)
    marks: list[str] = []
    for row in rows(directory):
        if row["split"] == "train":
            groups = list(TrajectoryStore(run / "trajectories" / "train" / f"{row['step']:06d}.jsonl.zst"))
            assert [len(group) + len(group.exceptions) for group in groups] == [MEMBERS] * TASKS
            marks += [str(group.metadata["mark"]) for group in groups]
    assert len(marks) == len(set(marks)) == STEPS * TASKS
    return marks


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_a_run_whose_client_and_server_are_killed_at_many_moments_trains_each_step_once(
    tmp_path: Path, seed: int
) -> None:
    moments = random.Random(seed)
    with a_server(tmp_path) as server, CuttingProxy(server.port, seed=seed, most_bytes=100_000) as proxy:
        run = LiveRun(proxy.url, tmp_path)
        with being_killed(server, run, moments, kills=5):
            lives_until_the_end(run, moments, kills=10)
    assert set(assert_each_step_once(tmp_path)) <= set(run.judged.read_text().split())


@pytest.mark.slow
@pytest.mark.thorough
def test_a_client_that_lives_loses_no_judged_group_to_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    moments = random.Random(3)
    with a_server(tmp_path) as server, CuttingProxy(server.port, seed=3, most_bytes=100_000) as proxy:
        run = LiveRun(proxy.url, tmp_path)
        with being_killed(server, run, moments, kills=6):
            lives_until_the_end(run, moments, kills=0)
    assert sorted(assert_each_step_once(tmp_path)) == sorted(run.judged.read_text().split())
