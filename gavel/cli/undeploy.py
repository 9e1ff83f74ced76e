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
    """Stop a deployment and remove what was made for it; a half-made one too. Doing so again changes nothing.

    Of a run with several deployments each is removed, also where another one cannot be.
    """
    from gavel.base.errors import GavelError
    from gavel.trainer.deploy.deploy import undeploy as remove
    from gavel.trainer.deploy.record import find_records
    from gavel.trainer.runs.run_directory import runs_root

    failed: list[tuple[str, GavelError]] = []
    for record in find_records(runs_root(), deployment, by_id=True):
        try:
            asyncio.run(remove(record, report=typer.echo))
        except GavelError as error:
            failed.append((record.id, error))
    if failed:
        told = "; ".join(f"{name} is not removed: {error.message}" for name, error in failed)
        raise GavelError(told, "\n       ".join(dict.fromkeys(error.remedy for _, error in failed)))


app = single_command(undeploy)
