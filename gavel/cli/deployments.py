"""`gavel deployments`: what is deployed, by the records in the run directories."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command


def deployments(
    run: Annotated[str | None, typer.Argument(help="Of this run alone. Default: of all runs.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Ask each host what it serves now.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Those that were removed, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as a JSON list.")] = False,
) -> None:
    """List deployments with their state, their smoke test, and what they cost."""
    from rich.console import Console
    from rich.table import Table

    from gavel.base.errors import GavelError
    from gavel.cli.terminal import plain
    from gavel.trainer.deploy.host import explained, open_host
    from gavel.trainer.deploy.record import find_records
    from gavel.trainer.runs.run_directory import runs_root

    found = [record for record in find_records(runs_root(), run) if everything or record.state != "undeployed"]
    if as_json:
        typer.echo(json.dumps([asdict(record) for record in found], indent=1, default=str))
        return
    console = Console()
    if not found:
        console.print("Nothing is deployed. Deploy a run: gavel deploy RUN HOST.")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("deployment", "run", "state", "model", "smoke test"):
        table.add_column(heading, overflow="fold")
    costs: list[str] = []
    for record in found:
        state = record.state
        try:
            host = open_host(record.address, **record.options)
            if record.state != "undeployed":
                costs.append(f"{record.id}: {host.costs(record)}")
            if status and record.state != "undeployed":
                with explained(host):
                    state = f"{state}, {asyncio.run(host.status(record))}"
        except GavelError as error:
            state = f"{state}, {error.message}"
        name = f"{record.project}/{record.model}@{record.step}"
        model = str(record.deployed.get("model_id", "–"))
        table.add_row(*map(plain, (record.id, name, state, model, record.smoke_test or "–")))
    console.print(table)
    for line in costs:
        console.print(plain(line), soft_wrap=True)


app = single_command(deployments)
