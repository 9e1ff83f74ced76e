"""`gavel scenarios`: the shipped scenarios."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from gavel.cli.lazy_commands import single_command
from gavel.cli.terminal import plain, print_table
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
    console = Console()
    cells = [(str(row["name"]), f"{row['train']:,}", f"{row['held_out']:,}", str(row["about"])) for row in rows]
    print_table(console, ("scenario", "train", "held out", "what the agent does"), cells, right=("train", "held out"))
    console.print(plain(f"With a package of their own, see docs/scenarios.md: {', '.join(BRIDGED)}."))


app = single_command(scenarios)
