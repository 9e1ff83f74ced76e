"""`gavel judge report`: reliability and biases of a judge, as a table and as one self-contained HTML file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gavel.cli.attempts import file_named
from gavel.cli.lazy_commands import single_command
from gavel.cli.terminal import plain
from gavel.reports.judge_trust import JudgeReport, read_report, render_report
from gavel.reports.page import write_page
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.group import TrajectoryGroup

_REASON = 200
"""Characters of a judge's explanation that are printed."""


def report(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE|RUN", help="Judged groups: what `gavel score --out` wrote, or a run's training."),
    ],
    reference: Annotated[
        str | None, typer.Option(help="Metric or field to compare with. Default: independent_reward, if there is one.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Field (dotted path) that groups rows of single trajectories.")] = None,
    html: Annotated[Path | None, typer.Option(help="Output file of the page. Default: beside FILE.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON; an undefined value is null.")
    ] = False,
) -> None:
    """Compare a judge with a reference, with other judges and with itself, and look for its biases."""
    file = file_named(file)
    found = read_report(read_groups(file, by), reference, file.name)
    page = html or page_beside(file)
    write_page(page, render_report(found))
    if as_json:
        typer.echo(json.dumps({**report_data(found), "report": str(page)}, indent=1))
        return
    console = Console()
    print_report(console, found)
    console.print(f"Report: {page}", highlight=False, markup=False, soft_wrap=True)


def page_beside(file: Path) -> Path:
    """Where the report of a judged file, or of a run's judge, is written unless told otherwise."""
    if file.is_dir():
        return file / "judge.report.html"
    return file.with_name(f"{file.name.removesuffix('.zst').removesuffix('.jsonl')}.report.html")


def write_judged_page(groups: Sequence[TrajectoryGroup], file: Path, page: Path | None = None) -> Path:
    """Writes the report of the file's judged groups. Raises `GavelError` where nobody is judged."""
    page = page or page_beside(file)
    write_page(page, render_report(read_report(groups, None, file.name)))
    return page


def report_data(report: JudgeReport) -> dict[str, Any]:
    """The figures for programs: unrounded values, with their 95 % intervals."""
    return {
        "source": report.source,
        "judges": report.judges,
        "facts": report.facts,
        "verdict": report.verdict,
        "sections": [
            {
                "title": section.title,
                "figures": [
                    {"name": figure.name, **asdict(figure.estimate), "meaning": figure.meaning}
                    for figure in section.figures
                ],
            }
            for section in report.sections
        ],
        "disagreements": [
            {"group": each.number, "tau": each.tau, "scores": each.scores, "reference": each.values}
            for each in report.disagreements
        ],
        "notes": report.notes,
        "unscored": report.unscored,
    }


def print_report(console: Console, report: JudgeReport) -> None:
    """Prints the figures, one table per section."""
    console.print(plain(f"{report.source} · {', '.join(report.judges) or 'judge unknown'}"))
    console.print(plain(report.facts))
    console.print(plain(report.verdict, "bold"))
    for number, section in enumerate(report.sections):
        console.print()
        console.print(plain(section.title, "bold"))
        table = Table(box=None, show_header=not number, pad_edge=False, header_style="dim")
        table.add_column("", width=21)
        table.add_column("value", justify="right", width=6)
        table.add_column("95 % interval", justify="right", width=16)
        table.add_column("groups", justify="right", width=6)
        table.add_column("meaning", style="dim")
        for figure in section.figures:
            table.add_row(figure.name, figure.value, figure.interval, f"{figure.estimate.groups:,}", figure.meaning)
        console.print(table)
    if report.disagreements:
        console.print()
        console.print(plain("Where judge and reference disagree most (transcripts are in the report)", "bold"))
    for each in report.disagreements:
        (high, low), (worse, better) = each.scores, each.values
        scored, truly = f"scored {high:.2f} over {low:.2f}", f"reference {worse:g} over {better:g}"
        console.print(plain(f"group {each.number}, tau {each.tau:.2f}: {scored}, {truly}"))
        if each.preferred.judgement is not None and each.preferred.judgement.explanation:
            console.print(plain(f"  the judge: {each.preferred.judgement.explanation[:_REASON]}"))
    console.print()
    for note in [*report.notes, *(f"{count:,} unscored: {reason}" for reason, count in report.unscored.items())]:
        console.print(plain(note))


app = single_command(report)
