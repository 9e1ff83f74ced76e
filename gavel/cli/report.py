"""`gavel report`: the page of a run, while it goes on or afterwards; that of a judged file."""

from pathlib import Path
from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command
from gavel.cli.named_run import run_named


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
    """Write a run's report as a page: curves, scores, what was left out, cost, samples.

    Of a judged file, the report of its judge.
    """
    if Path(run).is_file():
        from gavel.cli.judge_report import write_judged_page
        from gavel.scenarios.formats.reading import read_groups

        typer.echo(f"Report: {write_judged_page(read_groups(Path(run), None), Path(run), out)}")
        return
    directory = run_named(run)
    from gavel.cli.terminal import print_warning
    from gavel.reports.run_figures import read_run
    from gavel.reports.run_page import write_run_report

    typer.echo(f"Report: {write_run_report(directory, out)}")
    for line in read_run(directory).damage:
        print_warning(line)


app = single_command(report)
