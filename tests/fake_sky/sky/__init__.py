"""SkyPilot 0.14's SDK as far as Gavel calls it, with one cloud: this machine."""

import contextlib
import enum
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

PRICE = 2.49
_NAME = re.compile(r"[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?")
_WAIT_SECONDS = 300


class ClusterStatus(enum.Enum):
    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class JobStatus(enum.Enum):
    RUNNING = "RUNNING"
    FAILED = "FAILED"


class StatusRefreshMode(enum.Enum):
    NONE = "NONE"
    AUTO = "AUTO"
    FORCE = "FORCE"


class ResourcesUnavailableError(Exception):
    pass


class Task:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.secrets: dict[str, str] = {}

    @staticmethod
    def from_yaml_config(config: dict[str, Any], env_overrides: Any = None, secrets_overrides: Any = None) -> "Task":
        known = {"name", "num_nodes", "resources", "setup", "run", "file_mounts", "envs", "secrets", "workdir"}
        if unknown := config.keys() - known:
            raise ValueError(f"Invalid task YAML: {unknown}")
        for source in config.get("file_mounts", {}).values():
            if not Path(source).exists():
                raise ValueError(f"File mount source {source!r} does not exist locally.")
        return Task(config)

    def update_secrets(self, secrets: dict[str, str]) -> "Task":
        self.secrets |= secrets
        return self


class Dag:
    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def __enter__(self) -> "Dag":
        return self

    def __exit__(self, *_: object) -> None: ...

    def add(self, task: Task) -> None:
        self.tasks.append(task)


_requests: dict[str, Any] = {}


def _request(answer: Any) -> str:
    name = str(uuid.uuid4())
    _requests[name] = answer
    return name


def home() -> Path:
    return Path(os.environ["FAKE_SKY_HOME"])


def _file(cluster: str) -> Path:
    return home() / f"{cluster}.json"


def _clusters() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted(home().glob("*.json"))}


def optimize(dag: Dag, minimize: Any = None, admin_policy_request_options: Any = None) -> str:
    (task,) = dag.tasks

    def answer(out: Any) -> None:
        _check(task)
        cost = PRICE * task.config.get("num_nodes", 1)
        print("Considered resources (1 node):", file=out)
        print(" INFRA              INSTANCE   GPUS     COST ($)   CHOSEN", file=out)
        print(f" Fake (here)        box        H100:1   {cost:.2f}       \x1b[32m   ✔\x1b[0m     ", file=out)
        print(" Fake (there)       box        H100:1   9.99                ", file=out)

    return _request(answer)


def launch(task: Task, cluster_name: str | None = None, **options: Any) -> str:
    assert not options, options
    assert cluster_name is not None
    assert _NAME.fullmatch(cluster_name)
    autostop = task.config["resources"]["autostop"]

    def answer(out: Any) -> tuple[int, None]:
        _check(task)
        node = home() / "nodes" / cluster_name
        python = node / ".gavel" / "venv" / "bin" / "python"
        if not python.exists():
            python.parent.mkdir(parents=True)
            no_pip = 'if [ "$2" = pip ]; then exit 0; fi'  # what it would install is there
            python.write_text(f'#!/bin/sh\n{no_pip}\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
        print(f"⚙︎ Launching on Fake (here). Cluster name: {cluster_name}", file=out)
        for target, source in task.config.get("file_mounts", {}).items():
            place = node / target.removeprefix("~/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if Path(source).is_dir():
                shutil.copytree(source, place, dirs_exist_ok=True)
            else:
                shutil.copy(source, place)
        given = {**os.environ, "HOME": str(node), **task.secrets, "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
        given |= {"SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_GPUS_PER_NODE": "1"}
        given.pop("GAVEL_STATE", None)
        if task.config["setup"]:
            command = ["bash", "-c", task.config["setup"]]
            done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=_WAIT_SECONDS)
            print(done.stdout + done.stderr, file=out, end="")
            if done.returncode:
                raise RuntimeError("setup failed")
        with (node / "job.log").open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = ["bash", "-c", task.config["run"]]
            process = subprocess.Popen(command, env=given, cwd=node, start_new_session=True, **streams)
        told = {"process": process.pid, "autostop": autostop, "launched": time.time(), "status": "UP"}
        _file(cluster_name).write_text(json.dumps(told))
        print("📋 Job submitted, ID: 1", file=out)
        return 1, None

    return _request(answer)


def _check(task: Task) -> None:
    if task.config["resources"].get("accelerators", "").startswith("NONE-SUCH"):
        values = " ".join(task.secrets.values())
        raise ResourcesUnavailableError(f"Catalog does not contain any instances satisfying the request: {values}")


def stream_and_get(
    request_id: str, log_path: Any = None, tail: Any = None, follow: bool = True, output_stream: Any = None
) -> Any:
    return _requests.pop(request_id)(output_stream)


def get(request_id: str) -> Any:
    return _requests.pop(request_id)(sys.stderr)


def status(cluster_names: list[str] | None = None, refresh: Any = None, all_users: bool = False) -> str:
    def record(name: str, told: dict[str, Any]) -> dict[str, Any]:
        stop = {"autostop": told["autostop"]["idle_minutes"], "to_down": told["autostop"]["down"]}
        found = {"name": name, "status": ClusterStatus(told["status"]), "resources_str": "1x Fake(box, H100:1)"}
        return found | stop

    wanted = _clusters().keys() if cluster_names is None else cluster_names
    return _request(lambda _: [record(*each) for each in _clusters().items() if each[0] in wanted])


def job_status(cluster_name: str, job_ids: list[int] | None = None) -> str:
    def answer(_: Any) -> dict[int, JobStatus]:
        process = _clusters()[cluster_name]["process"]
        return {1: JobStatus.RUNNING if _runs(process) else JobStatus.FAILED}

    return _request(answer)


def _runs(process: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)  # or it stays as a zombie
    try:
        return os.getsid(process) == process
    except ProcessLookupError:
        return False


def tail_logs(cluster_name: str, job_id: int | None, follow: bool, tail: int = 0, output_stream: Any = None) -> int:
    with (home() / "nodes" / cluster_name / "job.log").open() as log:
        while True:
            if line := log.readline():
                print(line, end="", file=output_stream)
            elif not follow or not _runs(_clusters().get(cluster_name, {"process": -1})["process"]):
                return 0
            else:
                time.sleep(0.1)


def down(cluster_name: str, purge: bool = False, graceful: bool = False, graceful_timeout: int | None = None) -> str:
    def answer(_: Any) -> None:
        process = _clusters()[cluster_name]["process"]
        if _runs(process):
            os.killpg(process, signal.SIGKILL)
        _file(cluster_name).unlink()

    return _request(answer)


def api_cancel(request_ids: Any = None, all_users: bool = False, silent: bool = False) -> str:
    return _request(lambda _: [])
