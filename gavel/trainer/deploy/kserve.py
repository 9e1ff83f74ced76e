"""A manifest for KServe: vLLM over the base with the adapter of a pushed checkpoint, as one InferenceService.

KServe's storage initializer downloads `storage_uri` to /mnt/models, where the server reads the adapter; the base comes
from the Hugging Face Hub. Keys are secrets of the cluster: the manifest holds their names alone.
"""

from typing import Any

import yaml

from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.errors import DeployError

MOUNT = "/mnt/models"
IMAGE = "vllm/vllm-openai:v0.20.0"
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_SCHEMES = ("s3://", "gs://", "hf://", "https://", "pvc://")


def kserve_manifest(
    adapter: AdapterFacts,
    name: str,
    storage_uri: str,
    *,
    gpus: int = 1,
    image: str = IMAGE,
    max_context: int = 8192,
    service_account: str = "",
    hub_secret: str = "",
) -> str:
    """YAML. `name`: of the service and of the served model. `storage_uri`: the checkpoint where `gavel push` put it.

    `service_account` may read the store. `hub_secret`: the name of a secret with HF_TOKEN, for a base that needs one.
    Raises `DeployError` for what no cluster could load.
    """
    if adapter.base_is_local:
        raise DeployError(
            f"the base {adapter.base_model} is only on this machine, where a cluster cannot load it",
            "Deploy a run over a model of the Hugging Face Hub.",
        )
    if not storage_uri.startswith(_SCHEMES):
        raise DeployError(
            f"storage_uri={storage_uri!r} is nothing that KServe downloads",
            "Push the checkpoint first (gavel push RUN s3://bucket/prefix), and give what that prints.",
        )
    if "experts" in adapter.special:
        raise DeployError(
            "it adapts experts, which the service's vLLM is not started for",
            "Deploy it to a vLLM of your own (vllm:URL), or merge it into a model: gavel export.",
        )
    rank = next((rank for rank in _RANKS if rank >= adapter.rank), None)
    if rank is None:
        raise DeployError(f"its rank is {adapter.rank}; vLLM takes ranks up to {_RANKS[-1]}", "Train a smaller rank.")
    container: dict[str, Any] = {
        "name": "kserve-container",
        "image": image,
        "command": ["vllm", "serve", adapter.base_model],
        "args": [
            "--port=8080",
            f"--max-model-len={max_context}",
            f"--tensor-parallel-size={gpus}",
            "--enable-lora",
            f"--max-lora-rank={rank}",
            f"--lora-modules={name}={MOUNT}",
        ],
        "env": [{"name": "STORAGE_URI", "value": storage_uri}, *_token(hub_secret)],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 120, "periodSeconds": 10},
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}},
    }
    predictor: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 1, "containers": [container]}
    if service_account:
        predictor["serviceAccountName"] = service_account
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "annotations": {"gavel/run": f"{adapter.project}/{adapter.name}", "gavel/step": str(adapter.step)},
        },
        "spec": {"predictor": predictor},
    }
    return yaml.safe_dump(service, sort_keys=False)


def _token(hub_secret: str) -> list[dict[str, Any]]:
    if not hub_secret:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": hub_secret, "key": "HF_TOKEN"}}}]
