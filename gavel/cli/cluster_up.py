"""`gavel cluster up`."""

import typer

from gavel.base.errors import GavelError
from gavel.cli.cluster_options import (
    Accelerators,
    Down,
    Engine,
    IdleMinutes,
    Image,
    Infra,
    Name,
    Nodes,
    Secrets,
    accelerators_of,
    need_service,
)
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command


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
            if not yes and not _agreed():
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


def _agreed() -> bool:
    try:
        return typer.confirm("Start it?", err=True)
    except typer.Abort:  # no terminal
        return False


app = single_command(up)
