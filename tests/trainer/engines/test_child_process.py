"""A real process that serves, dies, hangs, or whose owner is killed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gavel.trainer.engines import child_process
from gavel.trainer.engines.child_process import ServerProcess
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.engines.vllm_launch import free_port
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow


SERVER = """
import http.server, os, subprocess, sys
port, pids = int(sys.argv[1]), sys.argv[2]
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(pids, "w") as file:
    file.write(f"{os.getpid()} {worker.pid}")
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
"""

OWNER = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from gavel.trainer.engines.child_process import ServerProcess
command, url, log = sys.argv[3:], sys.argv[1], Path(sys.argv[2])
ServerProcess(command, url, log, os.environ, start_seconds=30)
print("ready", flush=True)
if os.environ["THEN"] == "wait":
    time.sleep(600)
"""


@pytest.fixture
def command(tmp_path) -> list[str]:
    (tmp_path / "server.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "server.py"), str(free_port()), str(tmp_path / "pids")]


def url_of(command: list[str]) -> str:
    return f"http://127.0.0.1:{command[2]}"


def start(command: list[str], directory: Path, start_seconds: float = HANG_SECONDS) -> ServerProcess:
    return ServerProcess(command, url_of(command), directory / "log", os.environ, start_seconds=start_seconds)


def pids(directory: Path) -> list[int]:
    return [int(pid) for pid in (directory / "pids").read_text().split()]


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_is_ready_when_it_answers_and_closing_ends_its_workers_too(command, tmp_path):
    server = start(command, tmp_path)
    assert server.running
    assert all(alive(pid) for pid in pids(tmp_path))
    server.close()
    assert not server.running
    until(lambda: not any(alive(pid) for pid in pids(tmp_path)))
    server.close()
    assert "listening" in server.log_tail()


def test_a_server_that_does_not_listen_to_reason_is_killed(command, tmp_path):
    Path(command[1]).write_text("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER)
    server = start(command, tmp_path)
    server.close()
    until(lambda: not any(alive(pid) for pid in pids(tmp_path)))


def test_a_server_that_ends_early_is_an_error_with_the_end_of_its_log(tmp_path):
    dying = [sys.executable, "-c", "print('no memory left'); raise SystemExit(3)"]
    with pytest.raises(EngineError, match="ended before it was ready") as error:
        ServerProcess(
            dying, f"http://127.0.0.1:{free_port()}", tmp_path / "log", os.environ, start_seconds=HANG_SECONDS
        )
    assert "no memory left" in error.value.message
    assert str(tmp_path / "log") in error.value.message


def test_a_server_that_is_never_ready_is_an_error_and_is_ended(command, tmp_path, monkeypatch):
    def now() -> float:
        return 3.0 if (tmp_path / "asked").exists() else 0.0

    asked = f'open({str(tmp_path / "asked")!r}, "w"); self.send_response(503)'
    Path(command[1]).write_text(SERVER.replace("self.send_response(200)", asked))
    monkeypatch.setattr(child_process, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    with pytest.raises(EngineError, match="not ready after 2 s"):
        start(command, tmp_path, start_seconds=2)
    until(lambda: not any(alive(pid) for pid in pids(tmp_path)))


def test_a_server_that_dies_is_seen(command, tmp_path):
    server = start(command, tmp_path)
    os.kill(pids(tmp_path)[0], signal.SIGKILL)
    until(lambda: not server.running)
    server.close()
    until(lambda: not any(alive(pid) for pid in pids(tmp_path)))


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "exit"])
def test_however_the_owner_ends_no_orphan_stays(command, tmp_path, end):
    (tmp_path / "owner.py").write_text(textwrap.dedent(OWNER))
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "THEN": "exit" if end == "exit" else "wait"}
    owner = subprocess.Popen(
        [sys.executable, tmp_path / "owner.py", url_of(command), tmp_path / "log", *command],
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    if end != "exit":
        owner.send_signal(getattr(signal, end))
    owner.wait(HANG_SECONDS)
    until(lambda: not any(alive(pid) for pid in pids(tmp_path)))
