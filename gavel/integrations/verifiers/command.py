"""`gavel export-env`: a scenario as an environment package of verifiers."""

from pathlib import Path
from typing import Annotated

import typer

NAME = "export-env"
HELP = "Write a scenario as an environment package of verifiers."


def command(
    scenario: Annotated[str, typer.Argument(help="A shipped scenario, file.py, or an address: as for gavel train.")],
    folder: Annotated[Path, typer.Argument(help="Where the package is written: a folder that is not there yet.")],
) -> None:
    """Write a scenario as an installable package of verifiers: a taskset, and a harness that plays it.

    Its reward is the scenario's hand reward, or else success. A scenario of a file is copied into the package.
    """
    from gavel.integrations.verifiers.environment import write_package

    name = write_package(scenario, folder)
    typer.echo(f"{name} · {folder}")
    typer.echo(f"pip install -e {folder}, then load the taskset {name} (as a scenario here: verifiers:{name})")
