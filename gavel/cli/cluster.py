"""`gavel cluster …`: a cluster that trains for this machine, by SkyPilot."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gavel.base.errors import GavelError
from gavel.base.extras import MissingExtraError, missing_parts
from gavel.cli import train
from gavel.cli.lazy_commands import group_app
from gavel.cli.named import write_file
from gavel.cli.options import run_config
from gavel.cli.run_file import read_tables
from gavel.cli.terminal import plain, run_interruptibly
from gavel.scenarios.mixture import scenario_references
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.run_config import RunConfig

if TYPE_CHECKING:
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.cluster_settings import ClusterSettings
    from gavel.trainer.backends.skypilot.exports.exported_job import ExportedJob, GroupParts
    from gavel.trainer.backends.skypilot.host import ClusterHost, ClusterStatus

Name = Annotated[str, typer.Argument(help="The cluster.")]
Accelerators = Annotated[
    str, typer.Option(help="GPUs of each node, as SkyPilot names them: H100:1, A100-80GB:8; none for none.")
]
Infra = Annotated[
    str | None, typer.Option(help="aws, gcp/us-central1, k8s, slurm, … Default: the cheapest that is set up.")
]
Image = Annotated[str | None, typer.Option(help="Machine image, or docker:IMAGE.")]
Nodes = Annotated[int, typer.Option("--num-nodes", min=1, help="Nodes, which learn together.")]
IdleMinutes = Annotated[int, typer.Option(min=2, help="Minutes without use, after which the machines are stopped.")]
Down = Annotated[
    bool | None,
    typer.Option("--down/--stop", help="Delete idle machines, or stop them. Default: stop, where that can be."),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", help="Environment variable that the cluster is given, such as HF_TOKEN. Repeatable."),
]
Engine = Annotated[str, typer.Option(help="What samples the rollouts there: transformers or vllm.")]
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


def host_of_cluster(name: str) -> "ClusterHost":
    """Who started it; SkyPilot for a cluster that is not known here. Raises `ClusterError` without SkyPilot."""
    from gavel.trainer.backends.skypilot.backend import host_of
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.sky_host import SkyHost

    record = ClusterRecord.find(name)
    return SkyHost() if record is None else host_of(record)


def need_service() -> None:
    """Raises `MissingExtraError` where what a remote backend needs is not installed."""
    if missing := missing_parts("train"):
        raise MissingExtraError("gavel cluster", missing[0], "train")


def accelerators_of(named: str) -> str | None:
    return None if named == "none" else named


def up(
    name: Name = "gavel",
    accelerators: Accelerators = "H100:1",
    infra: Infra = None,
    image: Image = None,
    num_nodes: Nodes = 1,
    idle_minutes: IdleMinutes = 30,
    down: Down = None,
    secret: Secrets = None,
    engine: Engine = "transformers",
    cpus: str | None = typer.Option(None, help="CPUs of each node: 8, or 8+."),
    memory: str | None = typer.Option(None, help="GB of memory of each node: 64, or 64+."),
    disk_gb: int | None = typer.Option(None, help="GB of disk of each node."),
    spot: bool = typer.Option(False, "--spot", help="Spot machines: cheaper, and may be taken away."),
    slots: int = typer.Option(128, min=1, help="Conversations that are sampled at once."),
    max_context: int | None = typer.Option(None, min=16, help="Tokens of a conversation. Default: the model's own."),
    versions: int = typer.Option(1, min=1, help="Steps whose adapters are served at once."),
    port: int = typer.Option(8090, min=1, max=65535, help="Of the server, on the first node's loopback."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before machines are started."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Tell the price, and start nothing."),
) -> None:
    """Start a cluster that trains, or find it again; its price is told first.

    It ends itself when it was not used for --idle-minutes. This version of Gavel is installed there.
    """
    need_service()
    from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
    from gavel.trainer.backends.skypilot.cluster_settings import secret_values
    from gavel.trainer.backends.skypilot.launch import Launch, cluster_settings
    from gavel.trainer.backends.skypilot.sky_host import SkyHost

    values = secret_values(secret or [])
    settings = cluster_settings(
        cluster=name,
        accelerators=accelerators_of(accelerators),
        infra=infra,
        image=image,
        num_nodes=num_nodes,
        idle_minutes_to_autostop=idle_minutes,
        down=down,
        secrets=tuple(values),
        engine=engine,
        cpus=cpus,
        memory=memory,
        disk_gb=disk_gb,
        use_spot=spot,
        slots=slots,
        max_context=max_context,
        versions=versions,
        port=port,
    )
    host = SkyHost()

    async def start() -> None:
        launch = Launch(settings, values, host, lambda line: typer.echo(line, err=True))
        if await launch.running() is None:
            offer = await launch.offer()
            if dry_run:
                return
            if not yes and not _agreed("Start it?"):
                raise GavelError("nothing was started", "With --yes it is started without a question.")
            backend = await SkyPilotBackend.started(launch, offer)
        elif dry_run:
            return typer.echo(f"{name} is on. Nothing was started.")
        else:
            backend = await SkyPilotBackend.found(launch)
        await backend.close()
        typer.echo(f"{name} is up. Train there: gavel train my_scenario.py --backend-url sky://{name}")
        typer.echo(f'In Python: await gavel.SkyPilotBackend.attach("{name}")   End it: gavel cluster down {name}')

    run_interruptibly(start())


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list; an unknown price is null.")] = False,
) -> None:
    """Show what is on, and what it costs: every cluster that SkyPilot knows, whoever started it."""
    need_service()
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.host import ClusterStatus
    from gavel.trainer.backends.skypilot.sky_host import SkyHost
    from gavel.trainer.backends.skypilot.this_machine import ThisMachine

    records = {record.cluster: record for record in ClusterRecord.all()}
    here = [record for record in records.values() if record.process is not None]

    async def ask() -> list[ClusterStatus]:
        found = await ThisMachine().statuses()
        if len(here) < len(records) or not records:
            found += await SkyHost().statuses()
        return found

    found = run_interruptibly(ask())
    rows = [_row(each, records.get(each.cluster)) for each in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    if not found:
        console.print(plain("No cluster is on, and none is stopped."))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("cluster", "state", "machines", "if idle", "USD/h", "USD so far", ""):
        table.add_column(heading)
    for row in rows:
        known = "" if row["started_here"] else "not started from here"
        prices = _usd(row["usd_per_hour"]), _usd(row["usd_so_far"])
        table.add_row(*map(plain, (row["cluster"], row["state"], row["machines"], row["if_idle"], *prices, known)))
    console.print(table)
    on = [row["usd_per_hour"] for row in rows if row["state"] != "stopped"]
    total, unknown = sum(price or 0.0 for price in on), None in on
    more = ", and clusters of unknown price" if unknown else ""
    console.print(plain(f"On now: {total:.2f} USD an hour{more}. gavel cluster down NAME ends one."))


def _row(found: "ClusterStatus", record: "ClusterRecord | None") -> dict[str, Any]:
    """A cluster as it is listed; its price by the record where SkyPilot does not know it."""
    from gavel.trainer.backends.skypilot.host import idle_words

    price = found.usd_per_hour
    if price is None and record is not None:
        price = record.usd_per_hour
    return {
        "cluster": found.cluster,
        "state": found.state,
        "machines": found.resources,
        "if_idle": idle_words(record.idle_minutes, record.ends_machines) if record else found.autostop,
        "usd_per_hour": price,
        "usd_so_far": found.usd_so_far,
        "started_here": record is not None,
    }


def _usd(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


_LOOK_SECONDS = 5.0


def logs(
    name: Name = "gavel",
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on with what comes, until the server ends."),
) -> None:
    """Show the log of the server on a cluster."""
    need_service()
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.cluster_settings import redacted

    host, record = host_of_cluster(name), ClusterRecord.find(name)
    job = record.job if record else None
    hidden = [record.key.get_secret_value()] if record else []
    end = host.follow(name, job, lambda line: typer.echo(redacted(line, hidden)), until_end=follow)
    while follow and asyncio.run(host.job_state(name, job)) != "ended":
        time.sleep(_LOOK_SECONDS)
    end()


def ssh(name: Name = "gavel") -> None:
    """Open a shell on a cluster's first node."""
    need_service()
    from gavel.trainer.backends.skypilot.sky_host import SkyHost

    host = host_of_cluster(name)
    if not isinstance(host, SkyHost):
        raise GavelError(f"{name} is this machine", "Open a shell here.")
    if (state := asyncio.run(host.state(name))) != "up":
        raise GavelError(f"the cluster {name} is {state}", f"Start it: gavel cluster up {name}")
    asyncio.run(host.write_ssh_config(name))
    program = shutil.which("ssh")
    if program is None:
        raise GavelError("there is no ssh here", "Install it (Debian: apt install openssh-client).")
    sys.stdout.flush()
    os.execv(program, ["ssh", "--", name])


def down(
    name: Name = "gavel",
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask first."),
) -> None:
    """End a cluster, with its machines and the runs that are on them. Ending one that is not there does nothing."""
    need_service()
    from gavel.trainer.backends.skypilot.backend import end_cluster

    host = host_of_cluster(name)

    async def end() -> None:
        state = await host.state(name)
        if state != "absent" and not yes and not _agreed(f"Delete the machines of {name} and the runs on them?"):
            raise GavelError(f"{name} stays as it is", "With --yes it is ended without a question.")
        await end_cluster(name, host)
        typer.echo(f"There was no cluster {name}." if state == "absent" else f"{name} is down.")

    run_interruptibly(end())


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
    config = _train_config(str(job.program), job.more) if job.is_train_command else None
    if config is not None and str(job.program).endswith(".toml"):
        job = replace(job, scenario_file=_scenario_file(str(job.program)))
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
    config: RunConfig | None,
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


def _train_config(program: str, options: Sequence[str]) -> RunConfig:
    """The run of `gavel train PROGRAM OPTIONS`. Raises a `GavelError` or click's for what is wrong in it."""

    command = typer.main.get_command(train.app)
    parsed = command.make_context("gavel train", [program, *options]).params
    given: dict[str, Any] = {name: [*value] if isinstance(value, tuple) else value for name, value in parsed.items()}
    config = run_config(given["source"], given, given["assignments"], recipe=given["recipe"])
    for named in scenario_references(config.scenario):
        if not named.partition(":")[0].endswith(".py"):  # what a file loads may be there alone
            find_scenario(named)
    return config


def _scenario_file(run_file: str) -> str | None:
    """The file of Python that a run.toml names, as it is written there; None for a shipped scenario."""

    named = str(read_tables(Path(run_file))[0].get("scenario", "")).partition(":")[0]
    return named if named.endswith(".py") else None


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # no terminal
        return False


app = group_app(
    "Train on a cluster that SkyPilot starts, and write its scripts for other systems.",
    {"up": up, "status": status, "logs": logs, "ssh": ssh, "down": down, "export": export},
)
