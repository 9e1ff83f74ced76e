"""`gavel runs`, a listing of the run directories, and `gavel report`, the page of one; neither loads a model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import run_named
from gavel.cli.terminal import plain, print_table, print_warning
from gavel.reports.run_figures import read_run
from gavel.reports.run_outcome import outcome_of_run
from gavel.reports.run_page import write_run_report
from gavel.trainer.runs.run_directory import runs_root
from gavel.trainer.runs.run_listing import read_runs

_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def runs(
    directory: Annotated[Path | None, typer.Argument(help="Holds the runs. Default: GAVEL_RUNS, else runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list; age in seconds.")] = False,
) -> None:
    """List the runs with their state and best figure.

    Ends with status 1 for a DIRECTORY that is not there.
    """

    root = runs_root(directory)
    if directory is not None and not directory.exists():
        raise GavelError(
            f"there is no directory {directory}.",
            "Name one that holds runs, or leave it out: gavel runs lists those of GAVEL_RUNS, else of ./runs.",
        )
    found = sorted(read_runs(root), key=lambda run: run.age)
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in found], indent=1, default=str))
        return
    console = Console()
    if not found:
        console.print(plain(f"There are no runs in {root}. Start one: gavel demo, or gavel train SCENARIO."))
        return
    rows = [
        (
            run.name,
            run.state,
            f"{run.step}" if run.steps is None else f"{run.step}/{run.steps}",
            run.best,
            run.judge,
            _age(run.age),
        )
        for run in found
    ]
    print_table(console, ("run", "state", "step", "best", "judge", "age"), rows, right=("step", "age"))
    for run in found:
        if run.damage:
            print_warning(run.damage)


def _age(seconds: float) -> str:
    length, unit = next((age for age in _AGES if seconds >= age[0]), _AGES[-1])
    return f"{int(seconds / length)} {unit}"


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `gavel runs` lists it, or its directory.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Default: report.html of the run (run.html of a demo's)."),
    ] = None,
) -> None:
    """Write a run's report as a page: curves, scores, what was left out, cost, samples; and say what came of the run.

    While it goes on or afterwards.
    """
    directory = run_named(run)
    page, read = write_run_report(directory, out), read_run(directory)
    for line in outcome_of_run(directory, read.rows):
        typer.echo(line)
    typer.echo(f"Report: {page}")
    typer.echo(f"Open it in a browser; each transcript with its scores: gavel view {directory}", err=True)
    for line in read.damage:
        print_warning(line)


app, report_app = single_command(runs), single_command(report)
