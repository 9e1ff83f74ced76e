"""A live run whose client, server and line are killed and cut trains each step once, and loses no judged group."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.backend_server import BackendServer
from tests.cutting_proxy import CuttingProxy
from tests.limits import HANG_SECONDS
from tests.trainer.backends.remote.live_run import MEMBERS, STEPS, TASKS, LiveRun

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

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


def test_a_run_whose_client_and_server_are_killed_once_each_ends_as_any_other(tmp_path: Path) -> None:
    moments = random.Random(1)
    with a_server(tmp_path) as server, CuttingProxy(server.port, seed=1, most_bytes=200_000) as proxy:
        run = LiveRun(proxy.url, tmp_path)
        with being_killed(server, run, moments, kills=1):
            lives_until_the_end(run, moments, kills=1)
    assert set(assert_each_step_once(tmp_path)) <= set(run.judged.read_text().split())


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


def test_a_client_that_lives_loses_no_judged_group_to_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    moments = random.Random(3)
    with a_server(tmp_path) as server, CuttingProxy(server.port, seed=3, most_bytes=100_000) as proxy:
        run = LiveRun(proxy.url, tmp_path)
        with being_killed(server, run, moments, kills=6):
            lives_until_the_end(run, moments, kills=0)
    assert sorted(assert_each_step_once(tmp_path)) == sorted(run.judged.read_text().split())
