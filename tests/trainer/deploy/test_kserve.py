from pathlib import Path

import pytest
import yaml

from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts
from gavel.trainer.deploy.vllm import kserve_manifest
from tests.trainer.deploy.conftest import write_adapter

PUSHED = "s3://bucket/gavel/desk/clerk/checkpoints/000012"


def test_the_manifest_serves_the_adapter_of_the_pushed_checkpoint(adapter: AdapterFacts) -> None:
    text = kserve_manifest(adapter, "clerk-12", PUSHED, gpus=2, service_account="reader", hub_secret="hub")
    service = yaml.safe_load(text)
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert service["metadata"]["name"] == "clerk-12"
    predictor = service["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container", "the one that KServe gives the downloaded files to"
    assert {"name": "STORAGE_URI", "value": PUSHED} in container["env"]
    assert container["command"] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    assert {"--enable-lora", "--max-lora-rank=8", "--lora-modules=clerk-12=/mnt/models"} <= set(container["args"])
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert predictor["serviceAccountName"] == "reader"
    token = next(each for each in container["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["name"] == "hub"
    assert "value" not in token


@pytest.mark.parametrize(("rank", "served"), [(4, 8), (24, 32), (300, 320)])
def test_the_rank_is_one_that_vllm_knows(run: Path, rank: int, served: int) -> None:
    facts = read_facts(write_adapter(run / "x", rank=rank), project="p", name="n", step=1, base_model="org/b")
    assert f"--max-lora-rank={served}" in kserve_manifest(facts, "n", PUSHED)


def test_what_no_cluster_could_load_is_refused(run: Path, adapter: AdapterFacts) -> None:
    with pytest.raises(DeployError, match="KServe downloads"):
        kserve_manifest(adapter, "n", "/home/me/checkpoint")
    local = read_facts(adapter.directory, project="p", name="n", step=1, base_model="embedded/returns-desk")
    with pytest.raises(DeployError, match="only on this machine"):
        kserve_manifest(local, "n", PUSHED)
    large = read_facts(write_adapter(run / "x", rank=600), project="p", name="n", step=1, base_model="org/b")
    with pytest.raises(DeployError, match="512"):
        kserve_manifest(large, "n", PUSHED)
