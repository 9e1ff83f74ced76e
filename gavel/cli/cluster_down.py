"""`gavel cluster down`."""

import typer

from gavel.base.errors import GavelError
from gavel.cli.cluster_options import Name, host_of_cluster, need_service
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command


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
        if state != "absent" and not yes and not _agreed(name):
            raise GavelError(f"{name} stays as it is", "With --yes it is ended without a question.")
        await end_cluster(name, host)
        typer.echo(f"There was no cluster {name}." if state == "absent" else f"{name} is down.")

    run_interruptibly(end())


def _agreed(name: str) -> bool:
    try:
        return typer.confirm(f"Delete the machines of {name} and the runs on them?", err=True)
    except typer.Abort:  # no terminal
        return False


app = single_command(down)
