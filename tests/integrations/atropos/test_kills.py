"""SIGKILL at random moments: no accepted group is lost, and none is trained twice."""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.integrations.atropos.groups import REGISTRATION, body
from tests.integrations.atropos.served import AtroposServer

THOROUGH = bool(os.environ.get("GAVEL_TEST_THOROUGH"))
pytestmark = [pytest.mark.slow, pytest.mark.thorough]
_DEADLINE = 600.0


class Environment(threading.Thread):
    """Sends groups one after another, each until it is acknowledged; their `env_id` is their number."""

    def __init__(self, url: str, count: int, **changes: object) -> None:
        super().__init__(daemon=True)
        self.url, self.count, self.changes = url, count, changes
        self.accepted: list[int] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10.0, trust_env=False) as client:
            for number in range(self.count):
                while not self.stopped.is_set():
                    try:
                        answer = client.post("/scored_data", json=body(number, env_id=number, **self.changes))
                    except httpx.TransportError:
                        time.sleep(0.01)
                        continue
                    if answer.status_code == 200:
                        self.accepted.append(number)
                        break
                    time.sleep(0.05)


class Trainer(threading.Thread):
    """Reads batches, and keeps each batch once, by its number."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.batches: dict[int, list[int]] = {}
        self.repeated = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10.0, trust_env=False) as client:
            while not self.stopped.is_set():
                try:
                    answer = client.get("/batch").json()
                except (httpx.TransportError, ValueError):
                    time.sleep(0.01)
                    continue
                if answer.get("batch"):
                    numbers = [group["env_id"] for group in answer["batch"]]
                    known = self.batches.setdefault(answer["batch_id"], numbers)
                    assert known == numbers  # sent again, it is the same batch
                else:
                    time.sleep(0.01)


@pytest.mark.timeout(660)
def test_a_queue_for_another_trainer_survives_kills(tmp_path: Path):
    kills, groups = (20, 400) if THOROUGH else (2, 60)
    chance = random.Random(1)
    server = AtroposServer(tmp_path)
    server.start()
    httpx.post(f"{server.url}/register", json=REGISTRATION, trust_env=False).raise_for_status()
    environment, trainer = Environment(server.url, groups), Trainer(server.url)
    environment.start()
    trainer.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 0.5))
            server.kill()
            server.start()
        environment.join(_DEADLINE)
        assert environment.accepted == list(range(groups))
        deadline = time.monotonic() + _DEADLINE
        while sum(map(len, trainer.batches.values())) < groups and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        environment.stopped.set()
        trainer.stopped.set()
        trainer.join(_DEADLINE)
        server.kill()
    seen = Counter(number for numbers in trainer.batches.values() for number in numbers)
    assert seen == Counter(range(groups))


@pytest.mark.skipif(not THOROUGH, reason="it starts a learner many times: make test-kills")
@pytest.mark.timeout(1500)
def test_a_learner_trains_each_group_once_whatever_is_killed(tmp_path: Path):
    kills, steps = 4, 10
    chance = random.Random(2)
    server = AtroposServer(
        tmp_path, "--model", "embedded/returns-desk", "--steps", str(steps), "--batch-size", "8", "--wait-minutes", "4"
    )
    server.start()
    groups = 2 * steps
    environment = Environment(server.url, groups, **TRAINED)
    environment.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 2.0))
            server.kill()
            if chance.random() < 0.5:  # also while it starts
                server.begin()
                time.sleep(chance.uniform(0.0, 8.0))
                server.kill()
            server.start()
        assert server.wait() == 0, server.log.read_text()
    finally:
        environment.stopped.set()
        server.kill()
    run = tmp_path / "runs" / "atropos" / "returns-desk"
    trained = Counter(
        group.metadata["env_id"]
        for step in range(1, steps + 1)
        for group in TrajectoryStore(run / "trajectories" / "train" / f"{step:06d}.jsonl.zst")
    )
    assert environment.accepted == list(range(groups))
    assert trained == Counter(range(groups))


TRAINED = {
    "size": 4,
    "messages": [[{"role": "user", "content": "Go."}, {"role": "assistant", "content": "said"}]] * 4,
}
