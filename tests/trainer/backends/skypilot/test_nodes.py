"""The run script on two nodes of a network of its own: two network namespaces, joined by a cable."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.trainer.backends.skypilot.cluster import ClusterSettings, ClusterTask, OwnPackage
from tests.limits import HANG_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
KEY = "a-key-of-the-two-nodes-test"
_ADDRESSES = ("10.213.77.1", "10.213.77.2")
_CLIENT = """
import asyncio, sys
import gavel
from tests.trainer.backends.test_conformance import a_group, a_model

async def main():
    async with gavel.RemoteBackend("http://127.0.0.1:8090", patience=240) as backend:
        model = a_model()
        await model.register(backend)
        groups = [await a_group(model, 0.0, 1.0) for _ in range(2)]
        result = await model.train(groups, gavel.TrainConfig(learning_rate=1e-3))
        print(result.step, result.metrics["trajectories_trained"])

asyncio.run(main())
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """The names of two namespaces that see each other, and nothing else."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"gavel-{os.getpid()}-{rank}" for rank in range(2)]
    ends = [f"gv{os.getpid() % 100000}{rank}" for rank in range(2)]
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, _ADDRESSES, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=60)


def inside(name: str, *command: str, **environment: str) -> list[str]:
    given = [f"{key}={value}" for key, value in environment.items()]
    return ["ip", "netns", "exec", name, "env", *given, *command]


def rows(runs: Path) -> list[dict[str, float]]:
    lines = (runs / "tests" / "clerk" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == "train"]


def test_two_nodes_learn_what_one_does(nodes: list[str], tmp_path: Path) -> None:
    settings = ClusterSettings(runs=str(tmp_path / "runs"), num_nodes=2, idle_minutes_to_autostop=600)
    script = str(ClusterTask(settings, OwnPackage("id", "==1")).config()["run"])
    processes: list[subprocess.Popen[bytes]] = []
    logs = [tmp_path / f"node-{rank}.log" for rank in range(2)]
    common = {
        "GAVEL_PYTHON": sys.executable,
        "GAVEL_BACKEND_KEY": KEY,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    try:
        for rank, name in enumerate(nodes):
            given = {
                **common,
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NODE_RANK": str(rank),
                "SKYPILOT_NODE_IPS": "\n".join(_ADDRESSES),
                "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            }
            with logs[rank].open("wb") as out:
                command = inside(name, "bash", "-c", script, **given)
                processes.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
        asked = inside(nodes[0], sys.executable, "-c", _CLIENT, **common)
        done = subprocess.run(asked, capture_output=True, text=True, timeout=HANG_SECONDS)
        told = "\n".join(log.read_text() for log in logs)
        assert done.returncode == 0, done.stderr + told
        assert done.stdout.split() == ["1", "4"]
        assert rows(tmp_path / "runs")[0]["step"] == 1
        assert all(process.poll() is None for process in processes), told
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, 15)
        deadline = time.monotonic() + 60
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
