"""How vLLM servers are started: each on a GPU of its own, as a process that ends with its owner."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gavel.base.network import free_port
from gavel.trainer.config import VllmSettings
from gavel.trainer.engines import vllm_launch
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.engines.vllm_launch import (
    Served,
    ServerProcess,
    _arguments,
    _environment,
    check_startable,
    open_vllm_engine,
)
from tests.limits import HANG_SECONDS
from tests.trainer.engines.vllm_stand_in import until

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
from gavel.trainer.engines.vllm_launch import ServerProcess
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


def alive(directory: Path) -> list[bool]:
    """Of the server and its worker."""
    states = [Path(f"/proc/{pid}/stat") for pid in (directory / "pids").read_text().split()]
    return [each.exists() and each.read_text().rpartition(")")[2].split()[0] != "Z" for each in states]


@pytest.mark.parametrize("deaf", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"])
def test_a_server_is_ready_when_it_answers_and_closing_ends_its_workers_too(command, tmp_path, deaf):
    Path(command[1]).write_text(deaf + SERVER)
    server = start(command, tmp_path)
    assert server.running
    assert all(alive(tmp_path))
    server.close()
    assert not server.running
    until(lambda: not any(alive(tmp_path)))
    server.close()
    assert "listening" in server.log_tail()


def test_a_server_that_ends_early_is_an_error_with_the_end_of_its_log(tmp_path):
    (tmp_path / "dying.py").write_text("print('no memory left'); raise SystemExit(3)")
    with pytest.raises(EngineError, match="ended before it was ready") as error:
        start([sys.executable, str(tmp_path / "dying.py"), str(free_port())], tmp_path)
    assert "no memory left" in error.value.message
    assert str(tmp_path / "log") in error.value.message


def test_a_server_that_is_never_ready_is_an_error_and_is_ended(command, tmp_path, monkeypatch):
    def now() -> float:
        return 3.0 if (tmp_path / "asked").exists() else 0.0

    asked = f'open({str(tmp_path / "asked")!r}, "w"); self.send_response(503)'
    Path(command[1]).write_text(SERVER.replace("self.send_response(200)", asked))
    monkeypatch.setattr(vllm_launch, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    with pytest.raises(EngineError, match="not ready after 2 s"):
        start(command, tmp_path, start_seconds=2)
    until(lambda: not any(alive(tmp_path)))


@pytest.mark.parametrize("end", ["SIGKILL", "exit"])
def test_however_the_owner_ends_no_orphan_stays(command, tmp_path, end):
    (tmp_path / "owner.py").write_text(textwrap.dedent(OWNER))
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "THEN": "exit" if end == "exit" else "wait"}
    owner = subprocess.Popen(
        [sys.executable, tmp_path / "owner.py", url_of(command), tmp_path / "log", *command],
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout.readline() == b"ready\n"
    if end != "exit":
        owner.send_signal(getattr(signal, end))
    owner.wait(HANG_SECONDS)
    until(lambda: not any(alive(tmp_path)))


SERVED = Served("org/base", torch.float32, "cuda", rank=8, slots=4, max_context=64, versions=1)


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, ["2", "3"]), ("5, 7", ["5", "7"]), ("GPU-a,GPU-b,GPU-c", ["GPU-b", "GPU-c"])]
)
def test_each_replica_sees_one_of_the_last_gpus_alone_and_has_a_port_and_a_log_of_its_own(
    visible: str | None, gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    started: list[tuple[str, str, Path]] = []

    def start(command: list[str], url: str, log: Path, environment: dict[str, str], **_: object) -> None:
        started.append((environment["CUDA_VISIBLE_DEVICES"], url, log))
        raise EngineError("this is as far as a machine without GPUs goes")

    monkeypatch.setattr(vllm_launch, "ServerProcess", start)
    with pytest.raises(EngineError, match="as far as"):
        open_vllm_engine(VllmSettings(replicas=2, python="/bin/sh"), SERVED, tmp_path)
    assert sorted((gpu, log.relative_to(tmp_path).as_posix()) for gpu, _, log in started) == [
        (gpus[0], "vllm-logs/0.log"),
        (gpus[1], "vllm-logs/1.log"),
    ]
    assert len({url for _, url, _ in started}) == 2


def test_experts_are_served_in_the_form_that_peft_writes(tmp_path: Path) -> None:
    served = replace(SERVED, experts=True)
    assert "--enable-mixed-moe-lora-format" in _arguments(VllmSettings(), served, 1)
    assert "--enable-mixed-moe-lora-format" not in _arguments(VllmSettings(), SERVED, 1)
    with pytest.raises(EngineError, match="on a GPU alone") as error:
        open_vllm_engine(VllmSettings(), replace(served, device="cpu"), tmp_path)
    assert "--lora-experts" in error.value.remedy


def test_a_server_does_not_take_the_place_of_the_learner_among_its_processes():
    ours = {"PATH": "/bin", "RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert _environment(ours, VllmSettings()).keys() & ours.keys() == {"PATH"}


def an_interpreter(directory: Path, *, found: str) -> str:
    """Python without packages, and with the module `found`."""
    (directory / "modules" / found).mkdir(parents=True)
    (directory / "modules" / found / "__init__.py").touch()
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={directory}/modules exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_servers_that_cannot_be_started_here_are_told_before_any_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    without = an_interpreter(tmp_path / "without", found="another")
    with pytest.raises(EngineError, match=f"{without} cannot start vLLM: it has no module vllm") as error:
        check_startable(VllmSettings(python=without))
    assert "GAVEL_VLLM_PYTHON" in error.value.remedy
    with pytest.raises(EngineError, match="there is no interpreter /no/such/python"):
        check_startable(VllmSettings(python="/no/such/python"))
    (tmp_path / "broken").write_text("no program")
    (tmp_path / "broken").chmod(0o755)
    with pytest.raises(EngineError, match="broken cannot start vLLM"):
        check_startable(VllmSettings(python=str(tmp_path / "broken")))
    with_it = an_interpreter(tmp_path / "with", found="vllm")
    check_startable(VllmSettings(python=with_it, replicas=4))
    with pytest.raises(EngineError, match="5 replicas of vLLM need a GPU each, and there are 4"):
        check_startable(VllmSettings(python=with_it, replicas=5))
