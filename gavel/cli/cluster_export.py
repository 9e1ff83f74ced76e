"""`gavel cluster export`."""

import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from gavel.llm.errors import GavelError

if TYPE_CHECKING:
    from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob
    from gavel.trainer.backends.skypilot.exports.job_group import GroupParts

Program = Annotated[
    str | None,
    typer.Argument(
        help="run.toml, or a file of Python, that is run there. Without one: a server for clients elsewhere."
    ),
]


def export(
    program: Program = None,
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
    lora_rank: int = typer.Option(16, min=1, help="Of adapters on the job group's vLLM. Default: run.toml's."),
    judge: str | None = typer.Option(None, help="Judge model of the job group's service, such as openai/gpt-5-mini."),
    judge_secret: Annotated[
        list[str] | None,
        typer.Option(help="Environment variable that the judge service is given. Default: OPENAI_API_KEY."),
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
    from gavel.trainer.backends.skypilot.cluster_record import state_directory
    from gavel.trainer.backends.skypilot.exports.dockerfile import dockerfile
    from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob
    from gavel.trainer.backends.skypilot.exports.job_group import job_group as group_of
    from gavel.trainer.backends.skypilot.exports.kubernetes_job import kubernetes_job
    from gavel.trainer.backends.skypilot.exports.slurm_script import slurm_script
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
    job = ExportedJob(settings, own_package(state_directory() / "wheels"), program)
    match chosen[0]:
        case "--job-group":
            text = group_of(job, _parts(job, model, lora_rank, judge, judge_secret, shared))
        case "--slurm":
            text = slurm_script(job)
        case "--docker":
            text = dockerfile(job)
        case _:
            text = kubernetes_job(job)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"Written: {out}")
    _place_wheel(job, chosen[0], out)


_FORMS = ("--job-group", "--slurm", "--docker", "--kubernetes")


def _parts(
    job: "ExportedJob",
    model: str | None,
    lora_rank: int,
    judge: str | None,
    judge_secret: list[str] | None,
    shared: str,
) -> "GroupParts":
    from gavel.cli.run_file import validated
    from gavel.trainer.backends.skypilot.exports.job_group import GroupParts
    from gavel.trainer.run_config import RunConfig

    program = job.program
    if program is not None and program.endswith(".toml"):
        try:
            tables = tomllib.loads(Path(program).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise GavelError(f"{program} cannot be read: {error}", "`gavel config` prints such a file.") from error
        config = validated(RunConfig, tables, {})
        model, lora_rank = model or config.model.base_model, config.model.lora.rank
    if model is None:
        raise GavelError("which base model vLLM is to serve is not known", "Name it: --model Qwen/Qwen3-4B")
    secrets = tuple(judge_secret or ("OPENAI_API_KEY",)) if judge else ()
    settings = job.settings
    return GroupParts(model, lora_rank, shared, judge, secrets, settings.accelerators or "H100:1")


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
