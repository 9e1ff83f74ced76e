"""A job group of SkyPilot: the trainer, a vLLM that samples for it, and a judge service, each on machines of its own.

`gavel train` judges in its own process: beside it there is no service.

They find each other by SkyPilot's names (`vllm-0.GROUP`). The trainer's adapters go to vLLM through a volume that both
see. The group ends when the trainer does.
"""

from dataclasses import dataclass
from typing import Any

from gavel.trainer.backends.skypilot.errors import ClusterError
from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob, commented
from gavel.trainer.backends.skypilot.exports.yaml_text import yaml_documents
from gavel.trainer.backends.skypilot.own_package import OwnPackage
from gavel.trainer.backends.skypilot.scripts import run_script, setup_script, shell_words

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
