"""The vLLM engine: faults over a stand-in server, how servers start, and a step over a real one (`make test-vllm`)."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gavel.base.network import free_port
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import TrainConfig, VllmSettings
from gavel.trainer.engines import vllm as vllm_module
from gavel.trainer.engines import vllm_launch
from gavel.trainer.engines.protocol import AdapterGone, EngineError, Sampled
from gavel.trainer.engines.vllm import VllmEngine
from gavel.trainer.engines.vllm_launch import Served, ServerProcess, _arguments, check_startable, open_vllm_engine
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import IDS, a_group, a_model, ask, assert_sampled_by, registered, request_for, tiny_model
from tests.trainer.engines.vllm_stand_in import BASE, StandIn, until
from tests.trainer.families import BY_NAME

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


@pytest.fixture
def connect(server, policy, tmp_path) -> Iterator[Callable[..., VllmEngine]]:
    made: list[VllmEngine] = []

    def connected(version: int = 0, **settings) -> VllmEngine:
        made.append(VllmEngine(server.url, BASE, tmp_path / "adapters", max_context=256, **settings))
        made[-1].publish(policy, version)
        return made[-1]

    yield connected
    for engine in made:
        engine.close()


def test_the_address_may_be_that_of_openai_clients_and_a_server_of_another_model_is_refused(server, policy, tmp_path):
    with pytest.raises(EngineError, match="serves served, not org/other") as error:
        VllmEngine(server.url, "org/other", tmp_path / "adapters", max_context=256)
    assert "--served-model-name" in error.value.remedy
    engine = VllmEngine(f"{server.url}/v1/", BASE, tmp_path / "adapters", max_context=256)
    assert engine.max_context == 200, "the server takes no more"
    engine.publish(policy, 4)
    found = ask(engine, temperature=0.7)
    assert_sampled_by(tiny_model(), IDS, found, 0.7)
    assert found.adapter_version == 4
    engine.close()


def test_a_server_that_loads_no_adapters_or_has_unscaled_logprobs_says_what_it_needs(server, connect):
    server.missing = {"/v1/load_lora_adapter"}
    with pytest.raises(EngineError, match=r"answered 404: .*Not Found") as error:
        connect()
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in error.value.remedy
    server.missing, server.unscaled = set(), True
    engine = connect()
    assert ask(engine).token_ids
    assert ask(engine, temperature=0.0).token_ids
    with pytest.raises(EngineError, match=r"temperature 0\.7") as error:
        ask(engine, temperature=0.7)
    assert "--logprobs-mode processed_logprobs" in error.value.remedy


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_is_broken_off_or_never_answered_is_an_error_and_no_short_turn(
    server, connect, monkeypatch, streamed
):
    monkeypatch.setattr(vllm_module, "_HEALTH_CHECKS", 3)
    engine = connect()
    server.ails = "breaks off"
    with pytest.raises(EngineError, match=r"ended a (request|stream) early"):
        ask(engine, on_tokens=list[Sampled]().append if streamed else None)
    server.ails = None
    assert ask(engine).finish_reason == "length"
    monkeypatch.setattr(vllm_module, "deadline", lambda *_: 0.3)
    server.go_on.clear()
    with pytest.raises(EngineError, match="was not done after"):
        ask(engine)


def test_an_adapter_is_kept_while_a_request_uses_it_and_its_name_is_never_used_again(server, connect, policy, tmp_path):
    engine = connect(1)
    server.go_on.clear()
    early = engine.submit(request_for(IDS))
    until(lambda: server.asked[-1] == "/v1/completions")
    first = list(server.adapters)
    engine.publish(policy, 2)
    assert list(server.adapters)[:1] == first, "the request in flight still needs it"
    server.go_on.set()
    assert early.result(timeout=HANG_SECONDS).adapter_version == 1
    engine.publish(policy, 2)
    assert [name.split("-")[0] for name in server.adapters] == ["gavel@2"]
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == list(server.adapters)
    assert "adapter_model.safetensors" in server.adapters[server.every_name[-1]]
    assert len(set(server.every_name)) == 3
    engine.close()
    assert not server.adapters
    assert not (tmp_path / "adapters").exists()


def test_adapters_that_may_be_asked_for_stay_at_the_server_which_is_told_of_experts(server, connect, policy, opened):
    engine = connect(1, versions=2)
    engine.publish(policy, 2)
    engine.publish(opened(BY_NAME["Qwen3-MoE"], experts=True), 3)
    assert engine.adapter_versions == [2, 3]
    assert [name.split("-")[0] for name in server.adapters] == ["gavel@2", "gavel@3"]
    earlier, live = server.adapters
    server.sampled_by.clear()
    assert ask(engine, adapter_version=2).adapter_version == 2
    assert ask(engine).adapter_version == 3
    assert server.sampled_by == [earlier, live]
    with pytest.raises(AdapterGone, match="there are: 2, 3"):
        ask(engine, adapter_version=1)


def test_the_server_sleeps_while_the_learner_computes_and_no_request_is_lost(server, connect):
    engine = connect(sleep=True)
    server.asked.clear()
    server.go_on.clear()
    early = engine.submit(request_for(IDS))
    until(lambda: server.asked == ["/v1/completions"])
    threading.Timer(0.2, server.go_on.set).start()
    with engine.release_memory():
        assert early.done(), "what is in flight is waited for"
        late = engine.submit(request_for(IDS, seed=1))
    assert late.result(timeout=HANG_SECONDS).token_ids
    assert server.asked == ["/v1/completions", "completed", "/sleep", "/wake_up", "/v1/completions", "completed"]


@pytest.mark.parametrize("ails", ["gone", "dying", "cuts off", "aborts"])
def test_a_server_that_is_dying_or_gone_is_an_error_and_closes_the_engine(server, connect, policy, ails):
    engine = connect()
    assert not engine.closed
    if ails == "gone":
        server.close()
    else:
        server.ails = ails
    with pytest.raises(EngineError, match="is gone"):
        ask(engine)
    assert engine.closed
    with pytest.raises(EngineError, match="is gone"):
        engine.publish(policy, 1)


async def test_an_address_where_nothing_listens_is_an_error_that_names_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match=f"http://127.0.0.1:{port} is gone"):
        await a_model().register(LocalBackend(tmp_path, engine=VllmSettings(urls=(f"http://127.0.0.1:{port}",))))


@pytest.mark.vllm
async def test_a_model_trains_over_a_vllm_of_its_own_and_hears_of_its_death(tmp_path):
    settings = VllmSettings(python=os.environ["GAVEL_TEST_VLLM_PYTHON"], sleep=True)
    async with registered(tmp_path, engine=settings, max_context=512) as (model, backend):
        for step in (1, 2):
            group = await a_group(model, [0.0, 0.3, 0.6, 1.0])
            assert {trajectory.policy_version for trajectory in group} == {step - 1}
            result = await model.train([group], TrainConfig(learning_rate=1e-3))
            assert result.trained
            assert result.metrics["logprob_drift"] < 1e-4
            assert result.metrics["publish_gap"] < 1e-3
        engine = backend._run(model)._engine
        os.killpg(engine._process._process.pid, signal.SIGKILL)
        with pytest.raises(EngineError):
            await model.train([group])
    assert (tmp_path / "tests" / "clerk" / "vllm.log").is_file()
    assert not (tmp_path / "tests" / "clerk" / "adapters").exists()


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
import os, sys
from pathlib import Path
from gavel.trainer.engines.vllm_launch import ServerProcess
ServerProcess(sys.argv[3:], sys.argv[1], Path(sys.argv[2]), os.environ, start_seconds=30)
print("ready", flush=True)
sys.stdin.read()
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
    arguments = [sys.executable, "-c", OWNER, url_of(command), tmp_path / "log", *command]
    owner = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"ready\n"
    if end != "exit":
        owner.kill()
    owner.communicate(timeout=HANG_SECONDS)
    until(lambda: not any(alive(tmp_path)))


SERVED = Served("org/base", torch.float32, "cuda", rank=8, slots=4, max_context=64, versions=1)


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, ["2", "3"]), ("5, 7", ["5", "7"]), ("GPU-a,GPU-b,GPU-c", ["GPU-b", "GPU-c"])]
)
def test_each_replica_has_one_of_the_last_gpus_a_port_a_log_and_no_place_among_the_learners_processes(
    visible: str | None, gpus: list[str], four_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    ours = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    started: list[tuple[str, str, Path]] = []

    def start(command: list[str], url: str, log: Path, environment: dict[str, str], **_: object) -> None:
        assert environment.keys() & {"PATH", *ours} == {"PATH"}
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


def test_experts_are_served_in_the_form_that_peft_writes(four_gpus, tmp_path: Path) -> None:
    served = replace(SERVED, experts=True)
    assert "--enable-mixed-moe-lora-format" in _arguments(VllmSettings(), served, 1)
    assert "--enable-mixed-moe-lora-format" not in _arguments(VllmSettings(), SERVED, 1)
    with pytest.raises(EngineError, match="on a GPU alone") as error:
        open_vllm_engine(VllmSettings(), replace(served, device="cpu"), tmp_path)
    assert "--lora-experts" in error.value.remedy


def an_interpreter(directory: Path, *, found: str) -> str:
    """Python without packages, and with the module `found`."""
    (directory / "modules" / found).mkdir(parents=True)
    (directory / "modules" / found / "__init__.py").touch()
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={directory}/modules exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_servers_that_cannot_be_started_here_are_told_before_any_model_is_loaded(four_gpus, tmp_path, monkeypatch):
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
