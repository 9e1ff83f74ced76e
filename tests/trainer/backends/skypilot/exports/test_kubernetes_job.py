"""The Job: a pod for each node, which find each other, over the image of the Dockerfile."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gavel.trainer.backends.skypilot.exports.exported_job import HOME, USER, dockerfile, kubernetes_job
from tests.trainer.backends.skypilot.exports.an_export import a_job, checked


def objects(text: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("accelerators", ["H100:8", None])
def test_its_validator_finds_nothing(nodes: int, accelerators: str | None, tmp_path: Path) -> None:
    job = a_job(num_nodes=nodes, accelerators=accelerators, secrets=("HF_TOKEN",))
    (tmp_path / "job.yaml").write_text(kubernetes_job(job))
    checked("kubernetes-validate", "--strict", str(tmp_path / "job.yaml"))


def test_every_pod_knows_its_rank_and_the_first_one_s_name() -> None:
    made = objects(kubernetes_job(a_job("run.toml", num_nodes=2, accelerators="H100:8", cluster="Big")))
    job, service = made["Job"]["spec"], made["Service"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (2, 2, "Indexed")
    assert environment["SKYPILOT_NODE_IPS"] == "big-0.big"
    assert (environment["SKYPILOT_NUM_NODES"], environment["SKYPILOT_NUM_GPUS_PER_NODE"]) == ("2", "8")
    assert pod["subdomain"] == made["Service"]["metadata"]["name"] == "big"
    assert service["selector"].items() <= job["template"]["metadata"]["labels"].items()
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container["args"] == ["-m", "gavel", "train", "run.toml"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == made["PersistentVolumeClaim"]["metadata"]["name"]


def test_secrets_come_from_the_secret_that_the_comment_makes() -> None:
    text = kubernetes_job(a_job(secrets=("HF_TOKEN",)))
    (container,) = objects(text)["Job"]["spec"]["template"]["spec"]["containers"]
    asked = {
        each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"] if "secretKeyRef" in str(each)
    }
    assert asked.keys() == {"GAVEL_BACKEND_KEY", "HF_TOKEN"}
    for reference in asked.values():
        assert reference["name"] == "gavel"
        assert f"--from-literal={reference['key']}=" in text


def test_user_and_home_are_those_of_the_image() -> None:
    pod = objects(kubernetes_job(a_job()))["Job"]["spec"]["template"]["spec"]
    image = dockerfile(a_job())
    assert f"USER {pod['securityContext']['runAsUser']}\n" in image
    assert pod["securityContext"]["runAsUser"] == USER
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == HOME
    assert f"VOLUME {HOME}\n" in image
