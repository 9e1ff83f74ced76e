"""What SkyPilot is told of a cluster."""

import json
from pathlib import Path

from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
from gavel.trainer.backends.skypilot.cluster_task import backend_task
from gavel.trainer.backends.skypilot.own_package import OwnPackage

WHEEL = OwnPackage("id", wheel=Path("/here/gavel.whl"))


def test_machines_stop_when_the_server_has_ended_and_a_tunnel_is_no_work() -> None:
    config = backend_task(ClusterSettings(), WHEEL).config()
    assert config["resources"] == {
        "accelerators": "H100:1",
        "autostop": {"idle_minutes": 5, "down": False, "wait_for": "jobs"},
    }
    assert "--idle-minutes 25" in config["run"]
    assert config["file_mounts"] == {"~/.gavel/wheels/id/gavel.whl": "/here/gavel.whl"}


def test_all_that_was_chosen_arrives() -> None:
    settings = ClusterSettings(
        cluster="big",
        accelerators="H100:8",
        infra="k8s/mine",
        image="docker:mine",
        num_nodes=2,
        cpus="32+",
        memory="256+",
        disk_gb=500,
        use_spot=True,
        engine="vllm",
        slots=32,
        max_context=4096,
        versions=2,
        runs="/data/runs",
        setup="echo mine",
        file_mounts={"/data": "s3://mine"},
        secrets=("HF_TOKEN",),
    )
    config = backend_task(settings, OwnPackage("id", "==1")).config()
    assert (config["name"], config["num_nodes"]) == ("big", 2)
    assert config["resources"] == {
        "infra": "k8s/mine",
        "accelerators": "H100:8",
        "image_id": "docker:mine",
        "cpus": "32+",
        "memory": "256+",
        "disk_size": 500,
        "use_spot": True,
        "autostop": {"idle_minutes": 5, "down": True, "wait_for": "jobs"},
    }
    run, setup = config["run"], config["setup"]
    for words in ("--engine vllm", "--slots 32", "--max-context 4096", "--versions 2", "--runs /data/runs"):
        assert words in run
    assert setup.endswith("echo mine\n")
    assert config["file_mounts"] == {"/data": "s3://mine"}
    assert "HF_TOKEN" not in json.dumps(config)  # secrets are given beside it
