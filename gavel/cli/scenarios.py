"""`gavel scenarios`: the shipped scenarios."""

import sys

from gavel.cli.lazy_commands import single_command


def scenarios() -> None:
    """List the shipped scenarios with their number of tasks."""
    from rich.console import Console
    from rich.table import Table

    from gavel.cli.terminal import plain
    from gavel.scenarios.scenario import BRIDGED, find_scenario, shipped_scenarios

    table = Table(box=None, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("held out", justify="right")
    table.add_column("what the agent does", overflow="fold")
    for name in shipped_scenarios():
        scenario = find_scenario(name)
        text = sys.modules[f"gavel.scenarios.library.{name}"].__doc__ or ""
        counts = [f"{len(scenario.tasks(split)):,}" for split in ("train", "held_out")]
        table.add_row(plain(name), *counts, plain(text.strip().partition("\n")[0]))
    console = Console()
    console.print(table)
    console.print(plain(f"With a package of their own, see docs/scenarios.md: {', '.join(BRIDGED)}."))


app = single_command(scenarios)
