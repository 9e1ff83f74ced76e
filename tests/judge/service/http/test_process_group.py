"""Several processes on one port: they answer as one service, and begin and end together."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from tests.judge.service.in_process import group
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow


class Service:
    """`gavel serve --processes 2` in an interpreter of its own, whose children are forked from a fresh one."""

    def __init__(self, folder: Path, judge: str) -> None:
        self._log = folder / "log"
        command = [sys.executable, "-m", "gavel", "serve", "--port", "0", "--processes", "2", "--judge", judge]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=_environment(), stdout=log, stderr=log)

    @property
    def printed(self) -> str:
        return self._log.read_text()

    def url(self) -> str:
        until(lambda: "2 processes" in self.printed or self.process.poll() is not None)
        found = re.search(r"http://\S+", self.printed)
        assert found, self.printed
        return found[0]

    def children(self) -> set[int]:
        """The processes that serve: those that the supervisor spawned."""
        return {
            pid for pid in _children(self.process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        }


def _environment() -> dict[str, str]:
    """The caller's, without its settings and keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GAVEL_", "OPENAI_"))}


def _children(pid: int) -> set[int]:
    found = set[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found.update(map(int, task.read_text().split()))
    return found


@contextmanager
def service(folder: Path, judge: str = "constant") -> Iterator[Service]:
    started = Service(folder, judge)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait(HANG_SECONDS)


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def score(url: str) -> dict[str, Any]:
    """What one group gets over a connection of its own; a process that was killed may have taken it."""
    while True:
        with suppress(httpx.TransportError):
            answer = httpx.post(f"{url}/v1/score", json=group("yes", "no"), timeout=HANG_SECONDS)
            assert answer.status_code == 200
            return answer.json()


def is_refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz")
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_answer_as_one_service_and_each_that_ends_is_replaced(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        url = running.url()
        before = running.children()
        assert len(before) == 2
        assert len({score(url)["id"] for _ in range(12)}) == 12
        assert 'gavel_groups_total{status="scored"} 12.0' in httpx.get(f"{url}/metrics").text
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        assert score(url)["status"] == "scored"
        until(lambda: len(running.children() - {killed}) == 2)
        assert len(httpx.get(f"{url}/v1/judgements").json()["judgements"]) == 13
        running.process.terminate()
        assert running.process.wait(HANG_SECONDS) == 0
        assert is_refused(url)


@pytest.mark.thorough
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        url = running.url()
        running.process.kill()
        until(lambda: is_refused(url))


@pytest.mark.thorough
def test_a_service_that_cannot_start_says_why_and_ends(tmp_path: Path) -> None:
    with service(tmp_path, judge="openai/no-such-model-of-anybody,constant") as running:
        assert running.process.wait(HANG_SECONDS) == 1
        assert running.printed.startswith("error: ")
        assert "Traceback" not in running.printed


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_the_judge_may_do_is_shared_out(processes: int) -> None:
    judge = JudgeConfig(models="constant", concurrency=32, max_cost_usd=1.5, max_tokens=1000, tokens_per_minute=90)
    part = ServiceConfig(judge=judge, processes=processes).share()
    assert part.judge.concurrency == 32 // processes
    assert part.judge.max_cost_usd == 1.5 / processes
    assert part.judge.max_tokens == 1000 // processes
    assert part.judge.tokens_per_minute == 90 // processes
    assert part.judge.requests_per_minute is None
    assert part.limits.connections == 10_000 // processes


def test_more_processes_than_calls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"judge\.concurrency is 1, too little for 2 processes"):
        ServiceConfig(judge=JudgeConfig(models="constant", concurrency=1), processes=2)
