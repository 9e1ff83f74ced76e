"""`gavel cluster …`: a cluster that trains for this machine, by SkyPilot."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import group_app
from gavel.cli.options import Flag, given, with_options
from gavel.cli.terminal import run_interruptibly
from gavel.trainer.backends.skypilot.cluster import (
    ClusterRecord,
    ClusterSettings,
    cluster_settings,
    redacted,
)

Name = Annotated[str, typer.Argument(help="The cluster.")]
FLAGS = [
    Flag("accelerators", "--accelerators"),
    Flag("infra", "--infra"),
    Flag("image", "--image"),
    Flag("num_nodes", "--num-nodes"),
    Flag("idle_minutes_to_autostop", "--idle-minutes"),
    Flag("engine", "--engine"),
    Flag("cpus", "--cpus"),
    Flag("memory", "--memory"),
    Flag("disk_gb", "--disk-gb"),
    Flag("use_spot", "--spot"),
    Flag("slots", "--slots"),
    Flag("max_context", "--max-context"),
    Flag("versions", "--versions"),
    Flag("port", "--port"),
]


def up(
    values: Mapping[str, Any],
    name: Name = "gavel",
    down: Annotated[
        bool | None,
        typer.Option("--down/--stop", help="Delete idle machines, or stop them. Default: stop, where that can be."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", help="Environment variable that the cluster is given, such as HF_TOKEN. Repeatable."),
    ] = None,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before machines are started."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Tell the price, and start nothing."),
) -> None:
    """Start a cluster that trains, or find it again; its price is told first.

    It ends itself when it was not used for --idle-minutes. This version of Gavel is installed there.
    """
    need_extra("train", "gavel cluster")
    from gavel.trainer.backends.skypilot.backend import SkyPilotBackend, is_on, offer_cluster
    from gavel.trainer.backends.skypilot.hosts import SkyHost

    fields: dict[str, Any] = {path[0]: value for path, value in given(values, ClusterSettings, FLAGS).items()}
    if fields.get("accelerators") == "none":
        fields["accelerators"] = None
    host = SkyHost()

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    async def start() -> None:
        if dry_run:
            settings = cluster_settings(cluster=name, down=down, **fields)
            if await is_on(settings, ClusterRecord.find(name), host):
                return typer.echo(f"{name} is on. Nothing was started.")
            await offer_cluster(settings, host, tell)
            return
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


app = group_app(
    "Train on a cluster that SkyPilot starts.",
    {"up": with_options(up, ClusterSettings, FLAGS), "logs": logs, "down": down},
)
