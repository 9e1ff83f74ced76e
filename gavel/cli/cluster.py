"""`gavel cluster …`: a cluster that trains for this machine, by SkyPilot."""

from typing import Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import group_app
from gavel.cli.terminal import run_interruptibly

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
    need_extra("train", "gavel cluster")
    from gavel.trainer.backends.skypilot.backend import SkyPilotBackend, is_on, offer_cluster
    from gavel.trainer.backends.skypilot.cluster import ClusterRecord, cluster_settings
    from gavel.trainer.backends.skypilot.hosts import SkyHost

    values: dict[str, Any] = {
        "accelerators": None if accelerators == "none" else accelerators,
        "infra": infra,
        "image": image,
        "num_nodes": num_nodes,
        "idle_minutes_to_autostop": idle_minutes,
        "down": down,
        "engine": engine,
        "cpus": cpus,
        "memory": memory,
        "disk_gb": disk_gb,
        "use_spot": spot,
        "slots": slots,
        "max_context": max_context,
        "versions": versions,
        "port": port,
    }
    host = SkyHost()

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    async def start() -> None:
        if dry_run:
            settings = cluster_settings(cluster=name, **values)
            if await is_on(settings, ClusterRecord.find(name), host):
                return typer.echo(f"{name} is on. Nothing was started.")
            await offer_cluster(settings, host, tell)
            return
        backend = await SkyPilotBackend.launch(
            name, secrets=secret or [], say=tell, host=host, agree=lambda: yes or _agreed("Start it?"), **values
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
    from gavel.trainer.backends.skypilot.cluster import ClusterRecord, redacted

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
    from gavel.trainer.backends.skypilot.cluster import ClusterRecord

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


app = group_app("Train on a cluster that SkyPilot starts.", {"up": up, "logs": logs, "down": down})
