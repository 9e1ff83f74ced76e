"""SIGKILL at random moments: no accepted group is lost, and none is kept twice."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gavel.base.network import free_port
from gavel.integrations.atropos.queue import GroupQueue
from tests.integrations.atropos.groups import body

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
SERVER = """
import asyncio, sys
from pathlib import Path
from gavel.integrations._serving import listen_safely, serve
from gavel.integrations.atropos.queue import GroupQueue
from gavel.integrations.atropos.server import create_app
from tests.integrations.atropos.groups import TRAINER
from tests.integrations.atropos.test_kills import SPACE

listener = listen_safely("127.0.0.1", int(sys.argv[1]), None, "KEY")
app = create_app(GroupQueue(Path(sys.argv[2]), SPACE), TRAINER)
asyncio.run(serve(app, listener, host="127.0.0.1", announce=print))
"""
SPACE: Any = SimpleNamespace(vocabulary=99, max_context=64)
KILLS, GROUPS = 8, 300


@pytest.mark.timeout(660)
def test_a_queue_survives_kills(tmp_path: Path):
    chance, port, path = random.Random(1), free_port(), tmp_path / "queue.sqlite"
    accepted: list[int] = []
    stopped = threading.Event()

    def send() -> None:
        """Sends groups one after another, each until it is acknowledged; their `env_id` is their number."""
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10.0, trust_env=False) as client:
            while len(accepted) < GROUPS and not stopped.is_set():
                try:
                    answer = client.post("/scored_data", json=body(len(accepted) % 20, env_id=len(accepted)))
                    accepted.extend([len(accepted)] * (answer.status_code == 200))
                except httpx.TransportError:
                    time.sleep(0.01)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    try:
        for number in range(KILLS + 1):
            before = len(accepted)
            with subprocess.Popen([sys.executable, "-c", SERVER, str(port), str(path)]) as server:
                try:
                    while len(accepted) == before and number < KILLS:
                        time.sleep(0.01)
                    time.sleep(chance.uniform(0.0, 0.1))
                    if number == KILLS:
                        sending.join(300)
                finally:
                    server.kill()
    finally:
        stopped.set()
    assert accepted == list(range(GROUPS))
    assert [group.env_id for group in GroupQueue(path, SPACE).waiting] == accepted
