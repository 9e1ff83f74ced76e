"""`gavel undeploy`: removes deployments, and with them what they cost."""

import asyncio
from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command


def undeploy(
    deployment: Annotated[
        str, typer.Argument(help="As `gavel deployments` lists it; or a run (desk/qwen3-8b), for all of its own.")
    ],
) -> None:
    """Stop a deployment and remove what was made for it; a half-made one too. Doing so again changes nothing."""
    from gavel.trainer.deploy.deploy import undeploy as remove
    from gavel.trainer.deploy.find_records import find_records
    from gavel.trainer.runs.run_directory import runs_root

    for record in find_records(runs_root(), deployment, by_id=True):
        asyncio.run(remove(record, report=typer.echo))


app = single_command(undeploy)
