"""A Job of Kubernetes over the image of `dockerfile`, with a pod for each node; they find each other by a service."""

from typing import Any

from gavel.trainer.backends.skypilot.exports.dockerfile import HOME, USER, image_arguments
from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob, commented
from gavel.trainer.backends.skypilot.exports.yaml_text import yaml_documents

_SCRATCH = "/tmp"


def kubernetes_job(job: ExportedJob) -> str:
    """YAML, for `kubectl apply`. Its runs are on a claim of the cluster's name."""
    settings = job.settings
    name = settings.cluster.lower()
    nodes = settings.num_nodes
    keys = "".join(f" --from-literal={_key(secret)}=…" for secret in job.secrets)
    told = [
        f"kubectl create secret generic {name}{keys}" if job.secrets else "No secret is needed.",
        "kubectl apply --filename FILE, with the image in a registry of yours (gavel cluster export --docker).",
        *([f"kubectl port-forward pod/POD {settings.port} leads to the server."] if job.program is None else []),
    ]
    environment: list[dict[str, Any]] = [
        {"name": "SKYPILOT_NUM_NODES", "value": str(nodes)},
        {
            "name": "SKYPILOT_NODE_RANK",
            "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
            },
        },
        {"name": "SKYPILOT_NODE_IPS", "value": f"{name}-0.{name}"},
        {"name": "SKYPILOT_NUM_GPUS_PER_NODE", "value": str(job.gpus)},
        *(
            {"name": secret, "valueFrom": {"secretKeyRef": {"name": name, "key": _key(secret)}}}
            for secret in job.secrets
        ),
    ]
    limits = {"nvidia.com/gpu": str(job.gpus)} if job.gpus else {}
    container: dict[str, Any] = {
        "name": "gavel",
        "image": (settings.image or f"{name}-trainer:latest").removeprefix("docker:"),
        "args": image_arguments(job),
        "env": environment,
        "resources": {"requests": {"cpu": settings.cpus or "4", "memory": f"{settings.memory or 16}Gi"}}
        | ({"limits": limits} if limits else {}),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "runs", "mountPath": HOME}, {"name": "scratch", "mountPath": _SCRATCH}],
    }
    labels = {"app.kubernetes.io/name": name}
    pod: dict[str, Any] = {
        "metadata": {"labels": labels},
        "spec": {
            "subdomain": name,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "runs", "persistentVolumeClaim": {"claimName": name}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
    }
    indexed = {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed", "backoffLimit": 0}
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "accessModes": ["ReadWriteMany" if nodes > 1 else "ReadWriteOnce"],
                "resources": {"requests": {"storage": "50Gi"}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {**indexed, "template": pod},
        },
    ]
    return commented(told) + yaml_documents(documents)


def _key(secret: str) -> str:
    return secret.lower().replace("_", "-")
