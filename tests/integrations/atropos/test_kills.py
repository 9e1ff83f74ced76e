"""SIGKILL at random moments: no accepted group is lost, and none is trained twice."""

import random
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.integrations.atropos.groups import REGISTRATION, body
from tests.integrations.atropos.served import AtroposServer

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
_DEADLINE = 600.0


class Environment(threading.Thread):
    """Sends groups one after another, each until it is acknowledged; their `env_id` is their number."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(daemon=True)
        self.url, self.count = url, count
        self.accepted: list[int] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10.0, trust_env=False) as client:
            for number in range(self.count):
                while not self.stopped.is_set():
                    try:
                        answer = client.post("/scored_data", json=body(number, env_id=number))
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
    kills, groups = 20, 400
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
