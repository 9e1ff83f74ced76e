"""`gavel backend`: this machine trains and serves for clients elsewhere; `gavel cluster …`: one of SkyPilot does."""

import asyncio
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import group_app
from gavel.cli.options import flags_of, given, run_config, run_flags, settings_command, with_options
from gavel.cli.training import local_backend
from gavel.trainer.backends.skypilot.cluster import ClusterRecord, ClusterSettings, redacted
from gavel.trainer.config import VllmSettings
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

FLAGS = run_flags("--slots", "--max-context", "--engine", "--vllm-url", "--vllm-replicas", "--tracker")


def backend(
    values: Mapping[str, Any],
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond 127.0.0.1, put TLS before it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8090,
    runs: Annotated[Path | None, typer.Option(help="Where runs are kept. Default: GAVEL_RUNS, else runs.")] = None,
    versions: Annotated[int, typer.Option(min=1, help="Steps whose adapters are served at once.")] = 1,
    idle_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="End when unused for so long. Default: never.")
    ] = None,
) -> None:
    """Train and serve models on this machine for gavel.RemoteBackend elsewhere.

    Clients show the key in GAVEL_BACKEND_KEY; where that is not set, one is made and printed.

    A step that a client has sent is made once, whatever is cut, killed or sent again. Runs are kept here.
    Started by torchrun, the first process serves, and all of them learn.
    """
    need_extra("service", "gavel backend")
    need_extra("train", "gavel backend")
    from gavel.trainer.backends.remote.wire import checked_key
    from gavel.trainer.backends.server.app import serve
    from gavel.trainer.distributed import join, launched
    from gavel.trainer.engines.vllm_launch import check_startable
    from gavel.trainer.learner.replicas import follow_leader
    from gavel.trainer.runs.trackers import chosen_tracker

    settings = run_config("", values, flags=FLAGS).backend
    if settings.engine != "transformers":
        check_startable(VllmSettings() if settings.engine == "vllm" else settings.engine)
    chosen_tracker(settings.tracker)  # these are refused now, not when the first client registers a model
    if launched():
        world = join()  # now: the processes meet before the first client comes
        if world.rank:
            return follow_leader(world)
    shown = os.environ.get("GAVEL_BACKEND_KEY")  # no option: a command line is seen by every user of the machine
    key = checked_key(shown) if shown else secrets.token_urlsafe(24)
    root = runs_root(runs)
    local = local_backend(settings, root, versions=versions)

    def announce(url: str) -> None:
        typer.echo(f"Gavel backend · {url} · runs in {root}")
        if not shown:
            typer.echo(f"GAVEL_BACKEND_URL={url} GAVEL_BACKEND_KEY={key}")

    idle_seconds = None if idle_minutes is None else 60 * idle_minutes
    asyncio.run(serve(local, key=key, root=root, host=host, port=port, announce=announce, idle_seconds=idle_seconds))


app = settings_command(backend, RunConfig, FLAGS)


Name = Annotated[str, typer.Argument(help="The cluster.")]
CLUSTER_FLAGS = [
    *flags_of("", "accelerators", "infra", "image", "num_nodes", "idle_minutes_to_autostop=--idle-minutes", "engine"),
    *flags_of("", "cpus", "memory", "disk_gb", "use_spot=--spot", "slots", "max_context", "versions", "port"),
]


def up(
    values: Mapping[str, Any],
    name: Name = "gavel",
    down: Annotated[
        bool | None,
        typer.Option("--down/--stop", help="Delete idle machines, or stop them. Default: stop, where that can be."),
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="Variable that the cluster gets: HF_TOKEN. Repeatable.")
    ] = None,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before machines are started."),
) -> None:
    """Start a cluster that trains, or find it again; its price is told first.

    It ends itself when it was not used for --idle-minutes. This version of Gavel is installed there.
    """
    need_extra("train", "gavel cluster")
    from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
    from gavel.trainer.backends.skypilot.hosts import SkyHost

    fields: dict[str, Any] = {path[0]: value for path, value in given(values, ClusterSettings, CLUSTER_FLAGS).items()}
    if fields.get("accelerators") == "none":
        fields["accelerators"] = None
    host = SkyHost()

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    async def start() -> None:
        agree = lambda: yes or _agreed("Start it?")  # noqa: E731
        backend = await SkyPilotBackend.launch(
            name, secrets=secret or [], say=tell, host=host, agree=agree, down=down, **fields
        )
        await backend.close()
        typer.echo(f"{name} is up. Train there: gavel train my_scenario.py --backend-url sky://{name}")
        typer.echo(f'In Python: await gavel.SkyPilotBackend.attach("{name}")   End it: gavel cluster down {name}')

    run_interruptibly(start())


def logs(
    name: Name = "gavel",
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on with what comes, until the server ends."),
) -> None:
    """Show the log of the server on a cluster."""
    need_extra("train", "gavel cluster")
    from gavel.trainer.backends.skypilot.backend import host_of

    record = ClusterRecord.find(name)
    hidden = [record.key.get_secret_value()] if record else []
    tell = lambda line: typer.echo(redacted(line, hidden))  # noqa: E731
    host_of(record).tail(name, record.job if record else None, tell, follow=follow)


def down(
    name: Name = "gavel",
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask first."),
) -> None:
    """End a cluster, with its machines and the runs that are on them. Ending one that is not there does nothing."""
    need_extra("train", "gavel cluster")
    from gavel.trainer.backends.skypilot.backend import end_cluster, host_of

    host = host_of(ClusterRecord.find(name))

    async def end() -> None:
        state = await host.state(name)
        if state != "absent" and not yes and not _agreed(f"Delete the machines of {name} and the runs on them?"):
            raise GavelError(f"{name} stays as it is", "With --yes it is ended without a question.")
        await end_cluster(name, host)
        typer.echo(f"There was no cluster {name}." if state == "absent" else f"{name} is down.")

    run_interruptibly(end())


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # no terminal
        return False


cluster_app = group_app(
    "Train on a cluster that SkyPilot starts.",
    {"up": with_options(up, ClusterSettings, CLUSTER_FLAGS), "logs": logs, "down": down},
)
