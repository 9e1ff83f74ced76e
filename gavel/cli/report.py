"""`gavel report`: the page of a run, while it goes on or afterwards."""

from pathlib import Path
from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command
from gavel.cli.named_run import run_named


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `gavel runs` lists it, or its directory.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: report.html of the run.")] = None,
) -> None:
    """Write a run's report as a page: curves, scores, what was left out, cost, samples."""
    directory = run_named(run)
    from gavel.reports.run_page import write_run_report

    typer.echo(f"Report: {write_run_report(directory, out)}")


app = single_command(report)
