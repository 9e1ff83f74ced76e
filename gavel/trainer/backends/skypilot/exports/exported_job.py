"""One program on a cluster's nodes, as a Dockerfile, a Slurm script, a Kubernetes Job or a job group of SkyPilot.

A job group is the trainer, a vLLM that samples for it, and a judge service, each on machines of its own; `gavel train`
judges in its own process, so beside it there is no service. They find each other by SkyPilot's names (`vllm-0.GROUP`),
the trainer's adapters go to vLLM through a volume that both see, and the group ends when the trainer does.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gavel.trainer.backends.remote.wire import KEY_VARIABLE
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError, ClusterSettings
from gavel.trainer.backends.skypilot.cluster_task import (
    backend_arguments,
    run_script,
    run_text,
    setup_script,
    shell_words,
)
from gavel.trainer.backends.skypilot.own_package import OwnPackage


def yaml_documents(documents: Iterable[Any]) -> str:
    """The documents, one after another."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


@dataclass(frozen=True, slots=True)
class ExportedJob:
    """A server of `gavel backend`, or a program that trains by itself."""

    settings: ClusterSettings
    package: OwnPackage
    program: str | None = None
    """A file of Python, or what `gavel train` takes: run.toml, a shipped scenario, file.py:variable. It is started
    beside its files. None = a server."""
    more: tuple[str, ...] = ()
    """Further arguments of the program, or of `gavel train`."""
    scenario_file: str | None = None
    """That run.toml names."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of Python."""
        if self.program is None:
            return backend_arguments(self.settings)
        if self.is_train_command:
            return ("-m", "gavel", "train", self.program, *self.more)
        return (self.program, *self.more)

    @property
    def is_train_command(self) -> bool:
        """Whether `gavel train` runs it."""
        return self.program is not None and PurePath(self.program).suffix != ".py"

    @property
    def files(self) -> tuple[str, ...]:
        """What must be where it is started."""
        file = (self.program or "").partition(":")[0]
        own = (file,) if file.endswith((".py", ".toml")) else ()
        return (*own, *((self.scenario_file,) if self.scenario_file else ()))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables that must be set where it runs."""
        own = (KEY_VARIABLE,) if self.program is None else ()
        return (*own, *self.settings.secrets)

    @property
    def gpus(self) -> int:
        """Of each node."""
        _, _, count = (self.settings.accelerators or "none:0").partition(":")
        return int(float(count or 1))


def commented(lines: Sequence[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


HOME = "/srv/gavel"
USER = 10001
_END = "END_OF_RUN"


def dockerfile(job: ExportedJob) -> str:
    """For BuildKit, which every Docker of today builds with. Raises `ClusterError` for files that it cannot copy."""
    package, settings = job.package, job.settings
    for file in job.files:
        if PurePath(file).is_absolute() or ".." in PurePath(file).parts:
            raise ClusterError(
                f"{file} is outside the folder that docker builds from", "Name it from a folder that holds it: desk.py"
            )
    image = f"{settings.cluster}-trainer"
    wheel = package.wheel
    requirement = package.shell_word(extras=True, directory="/tmp")
    gpus = " --gpus all" if job.gpus else ""
    keys = "".join(f" --env {name}" for name in job.secrets)
    ports = f" --publish 127.0.0.1:{settings.port}:{settings.port}" if job.program is None else ""
    told = [
        *([f"{wheel.name} must be beside this file."] if wheel else []),
        f"docker build --tag {image} .",
        f"docker run{gpus}{keys}{ports} --volume {settings.cluster}:{HOME} {image}",
    ]
    program = [f"COPY {json.dumps([file, f'{HOME}/{file}'])}" for file in job.files]
    lines = [
        "FROM python:3.12-slim",
        *([f"COPY {wheel.name} /tmp/{wheel.name}"] if wheel else []),
        f"RUN python -m venv /opt/gavel && /opt/gavel/bin/pip install --no-cache-dir {requirement}",
        f"COPY <<'{_END}' /opt/gavel/run.sh",
        run_text() + _END + "\n",
        f"RUN useradd --system --uid {USER} --home-dir {HOME} --create-home gavel",
        *program,
        f"ENV HOME={HOME} GAVEL_PYTHON=/opt/gavel/bin/python PATH=/opt/gavel/bin:$PATH PYTHONUNBUFFERED=1",
        f"ENV SKYPILOT_NUM_GPUS_PER_NODE={job.gpus}",
        f"WORKDIR {HOME}",
        f"VOLUME {HOME}",
        f"USER {USER}",
        'ENTRYPOINT ["bash", "/opt/gavel/run.sh"]',
        f"CMD {json.dumps(image_arguments(job, host='0.0.0.0'))}",
    ]
    return "# syntax=docker/dockerfile:1\n" + commented(told) + "\n".join(lines) + "\n"


def image_arguments(job: ExportedJob, *, host: str | None = None) -> list[str]:
    """The arguments of Python inside the image, where there is no shell to find the home directory."""
    given = [HOME + argument[1:] if argument.startswith("~/") else argument for argument in job.arguments]
    return [*given, "--host", host] if host is not None and job.program is None else given


def slurm_script(job: ExportedJob) -> str:
    """Bash, for `sbatch`."""
    settings, package = job.settings, job.package
    gpus = [f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={settings.cluster}",
        f"#SBATCH --nodes={settings.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        f"#SBATCH --output={settings.cluster}-%j.log",
    ]
    wheel = [f"{package.wheel.name} must be beside this script."] if package.wheel is not None else []
    exports = [f"export {name} first; sbatch hands it on." for name in job.secrets]
    tunnel = (
        f"ssh -L {settings.port}:127.0.0.1:{settings.port} -J LOGIN NODE leads to the server; squeue names the node."
    )
    told = [
        "Start it with sbatch, from this folder. Add your site's partition, account and time limit.",
        *wheel,
        *exports,
    ]
    checks = "".join(f': "${{{name}:?is not set: export it before sbatch}}"\n' for name in job.secrets)
    return (
        "\n".join(head)
        + "\n"
        + commented([*told, *([tunnel] if job.program is None else [])])
        + "set -euo pipefail\n"
        + checks
        + 'cd "${SLURM_SUBMIT_DIR:-.}"\n'
        + 'wheels="$PWD"\n'
        + "export wheels\n"
        + 'SKYPILOT_NODE_IPS="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"\n'
        + 'SKYPILOT_NUM_NODES="$SLURM_JOB_NUM_NODES"\n'
        + f"SKYPILOT_NUM_GPUS_PER_NODE={job.gpus}\n"
        + 'GAVEL_MASTER_PORT="$((20000 + SLURM_JOB_ID % 20000))"\n'
        + "export SKYPILOT_NODE_IPS SKYPILOT_NUM_NODES SKYPILOT_NUM_GPUS_PER_NODE GAVEL_MASTER_PORT\n"
        + _document("setup", setup_script(package, settings.setup, directory='"$wheels"'))
        + _document("run", 'export SKYPILOT_NODE_RANK="$SLURM_NODEID"\n' + run_script(job.arguments))
        + 'if [ -z "${GAVEL_PYTHON:-}" ]; then\n  bash -c "$setup"\nfi\n'
        + 'exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c "$run"\n'
    )


def _document(name: str, script: str) -> str:
    """A variable of the shell that holds the script."""
    end = f"END_OF_{name.upper()}"
    return f"{name}=\"$(cat <<'{end}'\n{script}{end}\n)\"\n"


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


RUNS = "/gavel-runs"
VLLM_PORT, JUDGE_PORT = 8000, 8080
_JUDGE_KEY = "GAVEL_JUDGE_KEY"
_RANKS = (8, 16, 32, 64, 128, 256, 512)
"""That a vLLM can be started for."""


@dataclass(frozen=True, slots=True)
class GroupParts:
    """What a group has beside its trainer."""

    base_model: str
    """That vLLM serves."""
    lora_rank: int = 16
    shared: str = "gavel-runs"
    """Volume of SkyPilot for the runs, which several nodes may write to."""
    judge: str | None = None
    """Model that the judge service of a program asks, or the judge of `gavel train`; None = no service."""
    judge_secrets: tuple[str, ...] = ()
    """Environment variables that it needs, such as OPENAI_API_KEY."""
    vllm_accelerators: str = "H100:1"


def job_group(job: ExportedJob, parts: GroupParts) -> str:
    """YAML, for `sky jobs launch`. Raises `ClusterError` for what no group can run, such as a server."""
    settings = job.settings
    if "://" in parts.shared:
        raise ClusterError(
            f"runs are not kept in {parts.shared}: a mounted bucket neither locks nor appends to files",
            "Name a volume of SkyPilot (`sky volumes ls`), and push checkpoints to the bucket.",
        )
    if job.program is None:
        raise ClusterError(
            "a job group runs a program to its end",
            "Name it, or a scenario that `gavel train` takes: gavel cluster export --job-group run.toml",
        )
    name = settings.cluster
    serves = parts.judge is not None and not job.is_train_command
    place = f", from the folder of {' and '.join(job.files)}" if job.files else ""
    told = [
        f"sky jobs launch FILE{_secret_options(job, parts)}{place}",
        "The judge service is asked by the program: gavel.JudgeClient()."
        if serves
        else "The trainer judges in its own process.",
        f"First: sky volumes apply --name {parts.shared} …, a volume that several nodes may write to.",
    ]
    header = {"name": name, "execution": "parallel", "primary_tasks": ["trainer"], "termination_delay": "30s"}
    tasks = [_trainer(job, parts), _vllm(job, parts)]
    if serves:
        tasks.append(_judge(job, str(parts.judge), parts))
    return commented(told) + yaml_documents([header, *tasks])


def _trainer(job: ExportedJob, parts: GroupParts) -> dict[str, Any]:
    settings, name = job.settings, job.settings.cluster
    vllm = f"http://vllm-0.{name}:{VLLM_PORT}"
    environment = {"GAVEL_RUNS": RUNS, "GAVEL_VLLM_URL": vllm}
    secrets = list(settings.secrets)
    waiting, arguments = _wait(vllm + "/health"), job.arguments
    if job.is_train_command:
        arguments += ("--model", parts.base_model, "--lora-rank", str(parts.lora_rank), "--engine", vllm)
        arguments += ("--judge", parts.judge) if parts.judge else ()
        secrets += parts.judge_secrets
    elif parts.judge:
        environment["GAVEL_JUDGE_URL"] = f"http://judge-0.{name}:{JUDGE_PORT}"
        waiting += _wait(environment["GAVEL_JUDGE_URL"] + "/readyz")
        secrets.append(_JUDGE_KEY)
    return _task(
        "trainer",
        {
            "workdir": "." if job.files else None,
            "num_nodes": settings.num_nodes,
            "resources": _machines(job, settings.accelerators),
            "envs": environment,
            "secrets": dict.fromkeys(secrets),
        },
        parts,
        job.package,
        setup=setup_script(job.package, settings.setup),
        run=waiting + run_script(arguments),
    )


def _vllm(job: ExportedJob, parts: GroupParts) -> dict[str, Any]:
    serve = [
        *("vllm", "serve", parts.base_model, "--host", "0.0.0.0", "--port", str(VLLM_PORT)),
        *("--enable-lora", "--max-loras", "2", "--max-lora-rank", str(_served_rank(parts.lora_rank))),
    ]
    hub = {name: None for name in job.settings.secrets if name == "HF_TOKEN"}
    setup = 'python3 -m venv "$HOME/vllm"\n"$HOME/vllm/bin/pip" install --quiet vllm\n'
    given = {
        "resources": _machines(job, parts.vllm_accelerators),
        "envs": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"},
        "secrets": hub,
    }
    run = f'set -euo pipefail\nexec "$HOME/vllm/bin/"{shell_words(serve)}\n'
    return _task("vllm", given, parts, None, setup=setup, run=run)


def _judge(job: ExportedJob, model: str, parts: GroupParts) -> dict[str, Any]:
    arguments = ("-m", "gavel", "serve", "--host", "0.0.0.0", "--port", str(JUDGE_PORT), "--judge", model)
    given = {
        "resources": {"cpus": "4+"} | ({"infra": job.settings.infra} if job.settings.infra else {}),
        "envs": {"GAVEL_SERVICE_KEYS__TRAINER__ENV": _JUDGE_KEY},
        "secrets": dict.fromkeys((_JUDGE_KEY, *parts.judge_secrets)),
    }
    script = setup_script(job.package)
    return _task("judge", given, None, job.package, setup=script, run=run_script(arguments))


def _task(
    name: str, given: dict[str, Any], parts: GroupParts | None, package: OwnPackage | None, *, setup: str, run: str
) -> dict[str, Any]:
    mounts: dict[str, Any] = {}
    volumes: dict[str, str] = {}
    if package is not None and package.wheel is not None:
        mounts[package.wheel_there] = str(package.wheel)
    if parts is not None:
        volumes[RUNS] = parts.shared
    filled = {key: value for key, value in given.items() if value not in (None, {}, [])}
    places = ({"file_mounts": mounts} if mounts else {}) | ({"volumes": volumes} if volumes else {})
    return {"name": name, **filled, **places, "setup": setup, "run": run}


def _machines(job: ExportedJob, accelerators: str | None) -> dict[str, Any]:
    settings = job.settings
    given = {"infra": settings.infra, "accelerators": accelerators, "cpus": settings.cpus, "memory": settings.memory}
    return {name: value for name, value in given.items() if value is not None}


def _wait(url: str) -> str:
    """Until it answers; an hour at most, in which a model is fetched."""
    return (
        f"until curl --silent --fail --output /dev/null --max-time 10 {url}; do\n"
        f'  if [ "$SECONDS" -gt 3600 ]; then\n    echo "{url} does not answer" >&2\n    exit 1\n  fi\n'
        "  sleep 5\ndone\n"
    )


def _secret_options(job: ExportedJob, parts: GroupParts) -> str:
    key = (_JUDGE_KEY,) if parts.judge and not job.is_train_command else ()
    named = (*job.settings.secrets, *key, *parts.judge_secrets)
    return "".join(f" --secret {name}" for name in dict.fromkeys(named))


def _served_rank(rank: int) -> int:
    """The smallest that vLLM takes and that holds it. Raises `ClusterError`."""
    if rank > _RANKS[-1]:
        raise ClusterError(
            f"vLLM serves adapters of ranks up to {_RANKS[-1]}, not {rank}", "Choose a smaller one: --lora-rank 64"
        )
    return next(known for known in _RANKS if known >= rank)
