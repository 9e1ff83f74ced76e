"""`gavel cluster export`."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel.base.errors import GavelError
from gavel.cli.cluster_options import (
    Accelerators,
    Engine,
    IdleMinutes,
    Image,
    Infra,
    Nodes,
    Secrets,
    accelerators_of,
    need_service,
)
from gavel.cli.lazy_commands import single_command
from gavel.cli.written_file import write_file

if TYPE_CHECKING:
    from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
    from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob, GroupParts
    from gavel.trainer.run_config import RunConfig

Program = Annotated[
    str | None,
    typer.Argument(
        help="A file of Python that is run there, or what `gavel train` takes: run.toml, a shipped scenario, "
        "file.py:variable. Without one: a server for clients elsewhere."
    ),
]
More = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- OPTIONS]", help="Options of the program or of `gavel train`, behind --."),
]


def export(
    program: Program = None,
    more: More = None,
    job_group: bool = typer.Option(False, "--job-group", help="SkyPilot: trainer, vLLM and judge service."),
    slurm: bool = typer.Option(False, "--slurm", help="A batch script for sbatch."),
    docker: bool = typer.Option(False, "--docker", help="A Dockerfile."),
    kubernetes: bool = typer.Option(False, "--kubernetes", help="A Job of Kubernetes over the Dockerfile's image."),
    name: str = typer.Option("gavel", help="Of the cluster, job or image."),
    accelerators: Accelerators = "H100:1",
    infra: Infra = None,
    image: Image = None,
    num_nodes: Nodes = 1,
    idle_minutes: IdleMinutes = 30,
    secret: Secrets = None,
    engine: Engine = "transformers",
    cpus: str | None = typer.Option(None, help="CPUs of each node."),
    memory: str | None = typer.Option(None, help="GB of memory of each node."),
    model: str | None = typer.Option(None, help="Base model that the job group's vLLM serves. Default: run.toml's."),
    lora_rank: int | None = typer.Option(
        None, min=1, help="Of adapters on the job group's vLLM. Default: run.toml's, else 16."
    ),
    judge: str | None = typer.Option(
        None, help="Judge model of the job group's service, or of `gavel train` there, such as openai/gpt-5-mini."
    ),
    judge_secret: Annotated[
        list[str] | None,
        typer.Option(help="Environment variable that the judge is given. Default: OPENAI_API_KEY."),
    ] = None,
    shared: str = typer.Option(
        "gavel-runs", help="Volume of SkyPilot where the job group's trainer and vLLM see runs."
    ),
    out: Annotated[Path | None, typer.Option(help="File to write. Default: print it.")] = None,
) -> None:
    """Write the same scripts as a SkyPilot job group, or for Slurm, Docker or Kubernetes.

    What is written holds no secret: it names the environment variables that must be set where it is started.
    """
    need_service()
    from gavel.cli.exported_train import scenario_file, train_config
    from gavel.trainer.backends.skypilot.cluster_record import state_directory
    from gavel.trainer.backends.skypilot.exports.exported_job import (
        ExportedJob,
        dockerfile,
        kubernetes_job,
        slurm_script,
    )
    from gavel.trainer.backends.skypilot.exports.exported_job import job_group as group_of
    from gavel.trainer.backends.skypilot.launch import cluster_settings
    from gavel.trainer.backends.skypilot.own_package import own_package

    chosen = [form for form, on in zip(_FORMS, (job_group, slurm, docker, kubernetes), strict=True) if on]
    if len(chosen) != 1:
        raise typer.BadParameter(f"name one of {', '.join(_FORMS)}", param_hint="gavel cluster export")
    settings = cluster_settings(
        cluster=name,
        accelerators=accelerators_of(accelerators),
        infra=infra,
        image=image,
        num_nodes=num_nodes,
        idle_minutes_to_autostop=idle_minutes,
        secrets=tuple(secret or ()),
        engine=engine,
        cpus=cpus,
        memory=memory,
    )
    job = ExportedJob(settings, own_package(state_directory() / "wheels"), program, tuple(more or ()))
    config = train_config(str(job.program), job.more) if job.is_train_command else None
    if config is not None and str(job.program).endswith(".toml"):
        job = replace(job, scenario_file=scenario_file(str(job.program)))
    match chosen[0]:
        case "--job-group":
            text = group_of(job, _parts(settings, config, model, lora_rank, judge, judge_secret, shared))
        case "--slurm":
            text = slurm_script(job)
        case "--docker":
            text = dockerfile(job)
        case _:
            text = kubernetes_job(job)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_file(out, text)
        typer.echo(f"Written: {out}")
    _place_wheel(job, chosen[0], out)


_FORMS = ("--job-group", "--slurm", "--docker", "--kubernetes")


def _parts(
    settings: "ClusterSettings",
    config: "RunConfig | None",
    model: str | None,
    lora_rank: int | None,
    judge: str | None,
    judge_secret: list[str] | None,
    shared: str,
) -> "GroupParts":
    from gavel.trainer.backends.skypilot.exports.exported_job import GroupParts

    if config is not None:
        base = config.model.base_model
        model = model or (None if base and base.startswith("embedded/") else base)
        lora_rank = lora_rank or config.model.lora.rank
    if model is None:
        raise GavelError("which base model vLLM is to serve is not known", "Name it: --model Qwen/Qwen3-4B")
    secrets = tuple(judge_secret or ("OPENAI_API_KEY",)) if judge else tuple(judge_secret or ())
    return GroupParts(model, lora_rank or 16, shared, judge, secrets, settings.accelerators or "H100:1")


def _place_wheel(job: "ExportedJob", form: str, out: Path | None) -> None:
    """Puts the wheel of a checkout beside what was written, where that asks for it."""
    wheel = job.package.wheel
    if wheel is None or form not in ("--slurm", "--docker"):
        return
    if out is None:
        return typer.echo(f"It needs this file beside it: {wheel}", err=True)
    shutil.copy(wheel, out.absolute().parent / wheel.name)
    typer.echo(f"Written: {out.absolute().parent / wheel.name}")


app = single_command(export)
