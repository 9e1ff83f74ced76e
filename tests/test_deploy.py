"""What is under deploy/ is valid by the validators of its kinds, and true: its commands, settings, routes, numbers."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gavel.base.network import free_port
from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.http.app import create_app
from tests.forked import succeed
from tests.judge.service.in_process import group
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".venvs" / "deploy" / "bin"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OBJECTS: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
NGINX = (DEPLOY / "nginx.conf").read_text()
SECRETS = {"OPENAI_API_KEY": "k", "TRAINER_KEY": "k" * 40}
VALIDATORS = {
    "Dockerfile": ["hadolint", "deploy/Dockerfile"],
    "trainer.Dockerfile": ["hadolint", "deploy/trainer.Dockerfile"],
    "test.yml": ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/test.yml"],
    "release.yml": ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/release.yml"],
    "compose": ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml"],
    "Kubernetes": ["kubernetes-validate", "--strict", "deploy/kubernetes.yaml"],
}


@pytest.mark.parametrize("what", VALIDATORS)
def test_its_own_validator_finds_nothing(what: str):
    program, *arguments = VALIDATORS[what]
    found = shutil.which(program, path=str(TOOLS)) or shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed: make test-deploy")
    checked = subprocess.run([found, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def instructions(name: str) -> list[str]:
    """The arguments of an instruction, wherever the Dockerfile has it."""
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_the_image_is_built_from_what_the_file_copies(tmp_path: Path):
    copied = [words.split() for words in instructions("COPY") if not words.startswith("--from")]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for *sources, _ in copied:
        for source in sources:
            assert f"!{source}" in ignored
            place = tmp_path / source
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    (install,) = re.findall(r"pip install --no-cache-dir '(.*)'", DOCKERFILE)
    assert install == ".[service]"
    build = "import setuptools.build_meta as b; b.build_wheel('built')"
    (tmp_path / "built").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=HANG_SECONDS)
    assert list((tmp_path / "built").glob("gavel_rl-*.whl"))


def commands() -> dict[str, tuple[list[str], str]]:
    """The arguments of `gavel` and its settings, as each way of deploying has them."""
    settings = (DEPLOY / "gavel.toml").read_text()
    return {
        "image": (json.loads(instructions("CMD")[-1]), ""),
        "compose": (COMPOSE["services"]["judge"]["command"], settings),
        "Kubernetes": (CONTAINER["args"], OBJECTS["ConfigMap"]["data"]["gavel.toml"]),
    }


@pytest.mark.parametrize("way", ["image", "compose", "Kubernetes"])
def test_the_command_and_its_settings_are_taken(way: str, tmp_path: Path):
    arguments, settings = commands()[way]
    environment = dict(SECRETS)
    if settings:
        (tmp_path / "gavel.toml").write_text(settings)
    else:  # those of the comment in the Dockerfile
        text = (DEPLOY / "Dockerfile").read_text()
        environment |= dict(re.findall(r"--env (GAVEL_\w+)=(\S+)", text))
    checked = succeed(*arguments, "--check", cwd=tmp_path, **environment)
    assert 'host = "0.0.0.0"' in checked.stdout
    assert 'models = "openai/gpt-5-mini"' in checked.stdout
    assert 'env = "TRAINER_KEY"' in checked.stdout


def test_probes_ask_routes_that_are_there_and_ports_agree():
    routes = create_app(ServiceConfig()).openapi()["paths"]
    port = ServiceConfig().port
    probed = [CONTAINER[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    probed += [path for _, path in re.findall(r"http://127.0.0.1:(\d+)(/\w+)", DOCKERFILE)]
    assert len(probed) == 4
    assert set(probed) <= routes.keys()
    assert instructions("EXPOSE") == [str(port)]
    assert CONTAINER["ports"][0]["containerPort"] == port
    assert f"set $service http://judge:{port};" in NGINX
    assert COMPOSE["services"].keys() == {"judge", "proxy", "database"}


def test_every_secret_comes_from_outside_and_every_folder_is_that_of_the_image():
    environment = COMPOSE["services"]["judge"]["environment"]
    asked = {variable["name"]: variable["valueFrom"]["secretKeyRef"]["key"] for variable in CONTAINER["env"]}
    assert environment.keys() == asked.keys() == {"GAVEL_DATABASE_URL", *SECRETS}
    text = (DEPLOY / "kubernetes.yaml").read_text()
    assert all(f"--from-literal={key}=" in text for key in asked.values())
    assert all("${" in value for value in environment.values())
    (folder,) = instructions("VOLUME")
    assert COMPOSE["services"]["judge"]["volumes"] == [f"./gavel.toml:{folder}/gavel.toml:ro"]
    assert CONTAINER["volumeMounts"][0]["mountPath"] == folder
    assert str(POD["securityContext"]["runAsUser"]) == instructions("USER")[-1]


def test_a_stopping_service_and_a_waiting_request_have_the_time_that_they_need():
    limits = ServiceLimits()
    stopping = limits.shutdown_seconds + 5
    assert float(COMPOSE["services"]["judge"]["stop_grace_period"].rstrip("s")) > stopping
    assert POD["terminationGracePeriodSeconds"] > stopping + 5  # it waits so long before it stops
    (waits,) = re.findall(r"proxy_read_timeout (\d+)s", NGINX)
    assert int(waits) > limits.wait_seconds
    (largest,) = re.findall(r"client_max_body_size (\d+)m", NGINX)
    assert int(largest) * 2**20 > limits.body_bytes


_NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
"""Where Debian has it, which is not on everyone's PATH."""


@pytest.mark.skipif(_NGINX is None, reason="nginx is not installed: make test-deploy")
async def test_nginx_takes_slow_clients_and_hands_on_what_the_service_says(tmp_path: Path):
    limits = ServiceLimits(body_seconds=0.3)
    judge = JudgeConfig(models="stand-in", rubric="- ends with a message to the customer")
    config = ServiceConfig(port=0, database=str(tmp_path / "service.sqlite"), judge=judge, limits=limits)
    port = free_port()
    async with served(config) as service:
        (tmp_path / "nginx.conf").write_text(
            ("user root;\n" if os.geteuid() == 0 else "")  # or nobody, who may not write to the folder
            + NGINX.replace("listen 8080", f"listen 127.0.0.1:{port}")
            .replace("http://judge:8080", service.url)
            .replace("/tmp/", f"{tmp_path}/")
            .replace("worker_processes auto", "daemon off; worker_processes 1")
            .replace("Host $http_host", f"Host {service.url.removeprefix('http://')}")  # it has no keys
        )
        command = [str(_NGINX), "-p", tmp_path, "-c", tmp_path / "nginx.conf"]
        proxy = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
        try:
            await asyncio.to_thread(_asked_through, port, proxy)
        finally:
            proxy.terminate()
            await asyncio.to_thread(proxy.wait, HANG_SECONDS)


def _asked_through(port: int, proxy: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + HANG_SECONDS
    body = json.dumps(group("yes", "")).encode()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS) as client:
        while True:
            try:
                answer = client.post("/v1/score", content=body)
                break
            except httpx.ConnectError:
                assert proxy.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert (answer.status_code, answer.json()["scores"]) == (200, [1.0, 0.0])

        def slowly() -> Any:
            for part in (body[:50], body[50:100], body[100:]):
                time.sleep(0.3)
                yield part

        assert client.post("/v1/score", content=slowly()).status_code == 200
        refused = client.post("/v1/score", content=b"x" * 17 * 2**20)
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:gavel:problem:too-large")
        lines = client.post("/v1/score/batch", content=body + b"\n" + body)
        assert len(lines.text.splitlines()) == 2
