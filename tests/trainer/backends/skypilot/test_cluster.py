"""What a cluster is told: settings, the record of its key, secrets, scripts, the package, and how SkyPilot is asked."""

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from pydantic import SecretStr

from gavel.trainer.backends.skypilot.cluster import (
    ClusterError,
    ClusterRecord,
    ClusterSettings,
    OwnPackage,
    cluster_settings,
    find_own_package,
    read_secrets,
    run_script,
    setup_script,
    task_config,
)
from gavel.trainer.backends.skypilot.hosts import run_in_background
from tests.limits import HANG_SECONDS

KEY = "a-key-that-nobody-sees"
WHEEL = OwnPackage("id", local=Path("/here/gavel.whl"))
PACKAGE = OwnPackage("abc", "==1.2")
_RECORDER = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$HOME/called"\n'


def test_machines_are_stopped_where_they_can_be_and_deleted_elsewhere() -> None:
    assert not ClusterSettings().ends_machines
    assert not ClusterSettings(infra="gcp/us-central1").ends_machines
    for infra in ("k8s/context", "slurm"):
        assert ClusterSettings(infra=infra).ends_machines
    assert ClusterSettings(use_spot=True).ends_machines
    assert not ClusterSettings(infra="k8s", down=False).ends_machines


@pytest.mark.parametrize("name", ["", "1a", "a;rm", "a" * 51, "../up"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster: "):
        cluster_settings(cluster=name)


def test_an_unknown_option_is_named_and_values_are_not_repeated() -> None:
    with pytest.raises(ClusterError, match="acelerators") as refused:
        cluster_settings(acelerators="hf_very_secret")
    assert "hf_very_secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["hf-12345678"], "not named like"),
        ({"GAVEL_BACKEND_KEY": "12345678"}, "made for the cluster"),
    ],
)
def test_what_is_no_secret_is_refused_without_being_repeated(given: list[str], told: str) -> None:
    with pytest.raises(ClusterError, match=told) as refused:
        read_secrets(given)
    assert "12345678" not in str(refused.value)


def a_record(cluster: str = "gavel") -> ClusterRecord:
    return ClusterRecord(cluster=cluster, key=SecretStr(KEY), port=8090, machines={"num_nodes": 1})


def test_a_record_comes_back_and_is_the_user_s_alone(state: Path) -> None:
    a_record().save()
    a_record().model_copy(update={"job": 3}).save()
    a_record("other").save()
    (file, _) = sorted((state / "clusters").iterdir())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    found = ClusterRecord.find("gavel")
    assert (found.key.get_secret_value(), found.job, found.machines) == (KEY, 3, {"num_nodes": 1})
    assert [record.cluster for record in ClusterRecord.all()] == ["gavel", "other"]
    ClusterRecord.delete("gavel")
    ClusterRecord.delete("gavel")
    assert ClusterRecord.find("gavel") is None


@pytest.mark.parametrize("content", ["{", f'{{"key": "{KEY}"}}'])
def test_a_broken_record_says_what_to_do_and_not_what_it_holds(state: Path, content: str) -> None:
    (state / "clusters").mkdir()
    (state / "clusters" / "gavel.json").write_text(content)
    with pytest.raises(ClusterError, match=r"(?s)is not what Gavel wrote.*gavel cluster down gavel") as told:
        ClusterRecord.find("gavel")
    assert KEY not in str(told.value)
    assert told.value.__cause__ is None


def test_machines_stop_when_the_server_has_ended_and_a_tunnel_is_no_work() -> None:
    config = task_config(ClusterSettings(), WHEEL)
    assert config["resources"] == {
        "accelerators": "H100:1",
        "autostop": {"idle_minutes": 5, "down": False, "wait_for": "jobs"},
    }
    assert "--idle-minutes 25" in config["run"]
    assert config["file_mounts"] == {"~/.gavel/packages/id/gavel.whl": "/here/gavel.whl"}


def test_a_checkout_is_copied_once_with_all_that_a_cluster_needs(tmp_path: Path) -> None:
    package = find_own_package(tmp_path)
    ours = package.local / "src" / "gavel" / "trainer" / "backends" / "skypilot"
    assert {"run.sh", "setup.sh", "backend.py"} <= {file.name for file in ours.iterdir()}
    assert {file.name for file in package.local.iterdir()} == {"src", "pyproject.toml", "README.md", "LICENSE"}
    made = package.local.stat().st_mtime_ns
    assert find_own_package(tmp_path) == package
    assert package.local.stat().st_mtime_ns == made


def bash(script: str, home: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def recorder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_RECORDER)
    path.chmod(0o755)
    return path


def called(home: Path) -> list[str]:
    return (home / "called").read_text().splitlines()


def test_gavel_is_installed_once_and_again_for_another_package(tmp_path: Path) -> None:
    recorder(tmp_path / ".gavel" / "venv" / "bin" / "python")
    for _ in range(2):
        assert bash(setup_script(PACKAGE), tmp_path).returncode == 0
    assert len(called(tmp_path)) == 2
    assert called(tmp_path)[1].endswith("install gavel-rl[service,train]==1.2")
    assert bash(setup_script(OwnPackage("def", "==1.3")), tmp_path).returncode == 0
    assert called(tmp_path)[-1].endswith("gavel-rl[service,train]==1.3")


def test_one_process_is_started_plainly_and_arguments_stay_whole(tmp_path: Path) -> None:
    python = str(recorder(tmp_path / "python"))
    nodes = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "1", "GAVEL_PYTHON": python}
    for given in (nodes, nodes | {"SKYPILOT_NUM_GPUS_PER_NODE": "0.5"}):
        assert bash(run_script(["-m", "gavel", "x; echo $HOME", "~/runs"]), tmp_path, **given).returncode == 0
        assert called(tmp_path)[-1] == f"-m gavel x; echo $HOME {tmp_path}/runs"


def test_several_nodes_and_gpus_go_through_torchrun(tmp_path: Path) -> None:
    given = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "GAVEL_PYTHON": str(recorder(tmp_path / "python")),
    }
    assert bash(run_script(["train.py"]), tmp_path, **given).returncode == 0
    assert called(tmp_path) == [
        "-m torch.distributed.run --nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.1 "
        "--master-port 29400 --max-restarts 0 train.py"
    ]


async def test_a_call_that_hangs_is_left_and_keeps_no_process_alive() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        await run_in_background(never.wait, 0.05)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "gavel-cluster")
    never.set()
