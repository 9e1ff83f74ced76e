"""`gavel report`: the page of a run, while it goes on or afterwards; that of a judged file."""

from pathlib import Path
from typing import Annotated

import typer

from gavel.cli.judge import write_judged_page
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import run_named
from gavel.cli.terminal import print_warning
from gavel.reports.run_figures import read_run
from gavel.reports.run_outcome import outcome_of_run
from gavel.reports.run_page import write_run_report
from gavel.scenarios.formats.reading import read_groups


def report(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN | FILE", help="As `gavel runs` lists it, or its directory; or a judged file."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Default: report.html of the run (run.html of a demo's), or beside the file."),
    ] = None,
) -> None:
    """Write a run's report as a page (curves, scores, what was left out, cost, samples), and say what came of the run.

    Of a judged file, the report of its judge.
    """
    if Path(run).is_file():
        _say_written(write_judged_page(read_groups(Path(run), None), Path(run), out), run)
        return
    directory = run_named(run)

    page, read = write_run_report(directory, out), read_run(directory)
    for line in outcome_of_run(directory, read.rows):
        typer.echo(line)
    _say_written(page, str(directory))
    for line in read.damage:
        print_warning(line)


def _say_written(page: Path, source: str) -> None:
    typer.echo(f"Report: {page}")
    typer.echo(f"Open it in a browser; each transcript with its scores: gavel view {source}", err=True)


app = single_command(report)
