"""SkyPilot itself: its schema takes our tasks, its API server prices and dry-runs them, over a catalog made by hand."""

import contextlib
import importlib.util
import inspect
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gavel.base.network import free_port
from tests.fake_sky_cloud import FAKE
from tests.limits import HANG_SECONDS

pytestmark = [
    pytest.mark.sky,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="SkyPilot is not installed: make test-sky"),
]
SECRET = "hf_nobody_reads_this"
_QUEUE_PORT = 50011
"""Of every API server; a machine holds one."""
_GPU = "{'Gpus': [{'Name': 'H100', 'Count': 1.0, 'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 81920}"
_CATALOG = {
    "common/accelerators.csv": "AcceleratorName,Clouds\nH100,Lambda\n",
    "lambda/vms.csv": (
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
        f'gpu_1x_h100,H100,1.0,26.0,200.0,2.49,us-east-1,"{_GPU}",\n'
    ),
}
# The server checks credentials when it starts and finds none. Then the clients say which cloud there is.
_BOOTED = "import sky; sky.get('skypilot-server-on-boot-check')"
_ENABLE = """
from sky import global_user_state
from sky.clouds import cloud
from sky.check import _get_workspace_allowed_clouds
global_user_state.set_allowed_clouds(_get_workspace_allowed_clouds("default"), "default")
global_user_state.set_enabled_clouds(["Lambda"], cloud.CloudCapability.COMPUTE, "default")
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with socket.socket() as other:
        if other.connect_ex(("127.0.0.1", _QUEUE_PORT)) == 0:
            pytest.skip("an API server of SkyPilot runs on this machine already")
    home = tmp_path_factory.mktemp("home")
    for name, content in _CATALOG.items():
        file = home / ".sky" / "catalogs" / "v8" / name
        file.parent.mkdir(parents=True)
        file.write_text(content)
    port = free_port()
    places = os.pathsep.join(path for path in sys.path if path and "fake_sky" not in path)
    environment = {**os.environ, "HOME": str(home), "GAVEL_STATE": str(home / "state"), "PYTHONPATH": places}
    environment["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    (home / ".lambda_cloud").mkdir()
    (home / ".lambda_cloud" / "lambda_keys").write_text("api_key = none\n")
    log = (home / "server.log").open("wb")
    command = [sys.executable, "-m", "sky.server.server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + HANG_SECONDS
        while not _healthy(address):
            assert server.poll() is None, (home / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        client = environment | {"SKYPILOT_API_SERVER_ENDPOINT": address}
        subprocess.run([sys.executable, "-c", _BOOTED], env=client, capture_output=True, timeout=HANG_SECONDS)
        yield client
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its executors outlive it
        server.wait()
        log.close()


def _healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/health", timeout=10).is_success
    except httpx.TransportError:
        return False


def asked(client: dict[str, str], code: str) -> str:
    begin = f"""{_ENABLE}
import asyncio, io, json
from pathlib import Path
import sky
from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
from gavel.trainer.backends.skypilot.cluster import ClusterError, ClusterSettings, state_directory
from gavel.trainer.backends.skypilot.cluster import pack_wheel, task_config
from gavel.trainer.backends.skypilot.hosts import SkyHost
package = pack_wheel(state_directory() / "packages")
task = task_config(ClusterSettings(num_nodes=2, down=True), package)
host = SkyHost()
"""
    given = {"env": client, "text": True, "timeout": HANG_SECONDS}
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_dry_run_of_the_launch_is_taken_and_the_secrets_are_kept(client: dict[str, str]) -> None:
    code = f"""
made = host._task(task, {{"GAVEL_BACKEND_KEY": {SECRET!r}}})
(resources,) = made.resources
print(resources.autostop_config)
print(made.secrets.keys())
log = io.StringIO()
print(sky.stream_and_get(sky.launch(made, cluster_name="gavel", dryrun=True), output_stream=log))
print(log.getvalue(), made)
"""
    told = asked(client, code)
    assert "idle_minutes=5, down=True, wait_for=<AutostopWaitFor.JOBS" in told
    assert "dict_keys(['GAVEL_BACKEND_KEY'])" in told
    assert "Dryrun finished" in told
    assert SECRET not in told
    kept = [file for file in Path(client["HOME"]).rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert kept == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("accelerators='NONE-SUCH:1'", "SkyPilot finds no such machines: "),
        ("down=True, max_usd_per_hour=1.0", "offered at 2.49 USD an hour, and 1.00 USD is the most"),
    ],
)
def test_a_launch_that_cannot_be_ends_in_a_sentence(client: dict[str, str], arguments: str, told: str) -> None:
    code = f"""
try:
    asyncio.run(SkyPilotBackend.launch(secrets={{"HF_TOKEN": {SECRET!r}}}, say=print, {arguments}))
except ClusterError as error:
    print(error.message)
"""
    printed = asked(client, code)
    assert told in printed
    assert SECRET not in printed


def test_the_stand_in_takes_what_skypilot_takes() -> None:
    import sky

    fake = runpy.run_path(str(FAKE / "sky" / "__init__.py"))
    for name in ("optimize", "stream_and_get", "get", "status", "job_status", "tail_logs", "down"):
        assert parameters(fake[name]) <= parameters(getattr(sky, name)), name
    assert {"task", "cluster_name"} <= parameters(sky.launch)
    assert parameters(fake["Task"].from_yaml_config) <= parameters(sky.Task.from_yaml_config)
    assert {"UP", "INIT", "STOPPED", "AUTOSTOPPING"} <= {status.value for status in sky.ClusterStatus}
    assert {mode.value for mode in fake["StatusRefreshMode"]} == {mode.value for mode in sky.StatusRefreshMode}


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)
