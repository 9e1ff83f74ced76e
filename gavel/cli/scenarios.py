"""`gavel scenarios`: the shipped scenarios."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gavel.cli.lazy_commands import single_command
from gavel.cli.terminal import plain
from gavel.scenarios.scenario import BRIDGED, find_scenario, shipped_scenarios


def scenarios(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of name, tasks and text.")] = False,
) -> None:
    """List the shipped scenarios with their number of tasks."""

    rows: list[dict[str, str | int]] = []
    for name in shipped_scenarios():
        scenario = find_scenario(name)
        text = (sys.modules[f"gavel.scenarios.library.{name}"].__doc__ or "").strip().partition("\n")[0]
        train, held_out = (len(scenario.tasks(split)) for split in ("train", "held_out"))
        rows.append({"name": name, "train": train, "held_out": held_out, "about": text})
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("held out", justify="right")
    table.add_column("what the agent does", overflow="fold")
    for row in rows:
        table.add_row(plain(str(row["name"])), f"{row['train']:,}", f"{row['held_out']:,}", plain(str(row["about"])))
    console = Console()
    console.print(table)
    console.print(plain(f"With a package of their own, see docs/scenarios.md: {', '.join(BRIDGED)}."))


app = single_command(scenarios)
