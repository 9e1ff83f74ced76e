"""`gavel cluster logs`."""

import time

import typer

from gavel.cli.cluster_options import Name, host_of_cluster, need_service
from gavel.cli.lazy_commands import single_command

_LOOK_SECONDS = 5.0


def logs(
    name: Name = "gavel",
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on with what comes, until the server ends."),
) -> None:
    """Show the log of the server on a cluster."""
    need_service()
    import asyncio

    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.cluster_settings import redacted

    host, record = host_of_cluster(name), ClusterRecord.find(name)
    job = record.job if record else None
    hidden = [record.key.get_secret_value()] if record else []
    end = host.follow(name, job, lambda line: typer.echo(redacted(line, hidden)), until_end=follow)
    while follow and asyncio.run(host.job_state(name, job)) != "ended":
        time.sleep(_LOOK_SECONDS)
    end()


app = single_command(logs)
