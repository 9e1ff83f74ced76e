"""What a cluster is told: settings, the record of its key, secrets, scripts, the package, and how SkyPilot is asked."""

import os
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gavel.base.errors import GavelError
from gavel.trainer.backends.skypilot.cluster import (
    ClusterError,
    ClusterRecord,
    ClusterSettings,
    pack_wheel,
    read_secrets,
    run_script,
    setup_script,
    task_config,
)
from gavel.trainer.backends.skypilot.hosts import run_in_background
from tests.limits import HANG_SECONDS

KEY = "a-key-that-nobody-sees"
WHEEL = Path("/here/id/gavel.whl")
_RECORDER = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$HOME/called"\n'


@pytest.mark.parametrize(
    ("read", "told"),
    [
        *(
            (partial(ClusterSettings, cluster=name), r"ClusterSettings\.cluster")
            for name in ("", "1a", "a;rm", "a" * 51, "../up")
        ),
        (partial(ClusterSettings, acelerators="hf-12345678"), "acelerators"),
        (partial(read_secrets, ["NOT_SET_ANYWHERE"]), "NOT_SET_ANYWHERE is not set"),
        (partial(read_secrets, ["hf-12345678"]), "not named like"),
        (partial(read_secrets, {"GAVEL_BACKEND_KEY": "12345678"}), "made for the cluster"),
    ],
)
def test_a_name_an_option_or_a_secret_that_is_none_is_refused_without_a_value(read: Any, told: str) -> None:
    with pytest.raises(GavelError, match=told) as refused:
        read()
    assert "12345678" not in str(refused.value)


def a_record(cluster: str = "gavel") -> ClusterRecord:
    return ClusterRecord(cluster=cluster, key=SecretStr(KEY), port=8090, machines={"num_nodes": 1})


def test_a_record_comes_back_and_is_the_user_s_alone(state: Path) -> None:
    for record in (a_record(), a_record().model_copy(update={"job": 3}), a_record("other")):
        record.save()
    (file, _) = sorted((state / "clusters").iterdir())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    found = ClusterRecord.find("gavel")
    assert (found.key.get_secret_value(), found.job, found.machines) == (KEY, 3, {"num_nodes": 1})
    assert [record.cluster for record in ClusterRecord.all()] == ["gavel", "other"]
    for _ in range(2):
        ClusterRecord.delete("gavel")
    assert ClusterRecord.find("gavel") is None
    for content in ("{", f'{{"key": "{KEY}"}}'):  # a broken one says what to do, and not what it holds
        file.write_text(content)
        with pytest.raises(ClusterError, match=r"(?s)is not what Gavel wrote.*gavel cluster down gavel") as told:
            ClusterRecord.find("gavel")
        assert KEY not in str(told.value)
        assert told.value.__cause__ is None


def test_machines_stop_when_the_server_has_ended_and_are_deleted_where_they_cannot_be_stopped() -> None:
    for settings in ({}, {"infra": "gcp/us-central1"}, {"infra": "k8s", "down": False}):
        assert not ClusterSettings(**settings).ends_machines
    for settings in ({"infra": "k8s/context"}, {"infra": "slurm"}, {"use_spot": True}):
        assert ClusterSettings(**settings).ends_machines
    config = task_config(ClusterSettings(), WHEEL)
    autostop = {"idle_minutes": 5, "down": False, "wait_for": "jobs"}
    assert config["resources"] == {"accelerators": "H100:1", "autostop": autostop}
    assert "--idle-minutes 25" in config["run"]
    assert config["file_mounts"] == {"~/.gavel/packages/id/gavel.whl": "/here/id/gavel.whl"}


def test_a_wheel_is_packed_once_and_installs_all_that_a_cluster_needs(tmp_path: Path) -> None:
    wheel = pack_wheel(tmp_path / "packages")
    made = wheel.stat().st_mtime_ns
    assert (pack_wheel(tmp_path / "packages"), wheel.stat().st_mtime_ns) == (wheel, made)
    there = tmp_path / "there"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", there, wheel]
    subprocess.run(command, check=True, timeout=HANG_SECONDS)
    ours = there / "gavel" / "trainer" / "backends" / "skypilot"
    assert {"run.sh", "setup.sh", "backend.py"} <= {file.name for file in ours.iterdir()}
    assert (there / "bin" / "gavel").is_file()
    (metadata,) = there.glob("gavel_rl-*.dist-info/METADATA")
    assert {"Provides-Extra: service", "Provides-Extra: train"} <= set(metadata.read_text().splitlines())


def calls_of(script: str, home: Path, **sky: str) -> list[str]:
    """How the interpreter of a machine has been called, once this script has run there."""
    python = home / ".gavel" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(_RECORDER)
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GAVEL_PYTHON": str(python)}
    environment |= {f"SKYPILOT_{name}": value for name, value in sky.items()}
    subprocess.run(["bash", "-c", script], env=environment, check=True, timeout=HANG_SECONDS)
    return (home / "called").read_text().splitlines()


def test_gavel_is_installed_once_a_package_and_several_processes_are_started_through_torchrun(tmp_path: Path) -> None:
    for _ in range(2):
        called = calls_of(setup_script(WHEEL), tmp_path)
    assert len(called) == 2
    assert called[1].endswith(f"install {tmp_path}/.gavel/packages/id/gavel.whl[service,train]")
    called = calls_of(setup_script(Path("/here/other/gavel.whl")), tmp_path)
    assert called[-1].endswith("/other/gavel.whl[service,train]")
    (tmp_path / "called").unlink()
    script = run_script(["-m", "gavel", "x; echo $HOME", "~/runs"])
    for gpus in ("1", "0.5"):
        called = calls_of(script, tmp_path, NUM_NODES="1", NUM_GPUS_PER_NODE=gpus)
        assert called[-1] == f"-m gavel x; echo $HOME {tmp_path}/runs"
    nodes = {"NUM_NODES": "2", "NODE_RANK": "1", "NODE_IPS": "10.0.0.1\n10.0.0.2", "NUM_GPUS_PER_NODE": "8"}
    assert calls_of(run_script(["train.py"]), tmp_path, **nodes)[2:] == [
        "-m torch.distributed.run --nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.1 "
        "--master-port 29400 --max-restarts 0 train.py"
    ]


async def test_a_call_that_hangs_is_left_and_keeps_no_process_alive() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        await run_in_background(never.wait, 0.05)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "gavel-cluster")
    never.set()
