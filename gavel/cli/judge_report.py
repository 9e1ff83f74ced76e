"""`gavel judge report`: how far a judge can be trusted, as a table and as one self-contained HTML file."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from gavel.cli.terminal import plain
from gavel.reports.judge_page import render_report
from gavel.reports.judge_trust import JudgeReport, read_report
from gavel.reports.page import write_page
from gavel.scenarios.jsonl import read_groups


def report_command(file: Path, reference: str | None, by: str | None, html: Path | None) -> None:
    """What `gavel judge report` does; `html` None = beside `file`. Raises a `GavelError` for a file of no use."""
    report = read_report(read_groups(file, by), reference, file.name)
    page = html or file.with_name(f"{file.name.removesuffix('.zst').removesuffix('.jsonl')}.report.html")
    write_page(page, render_report(report))
    console = Console()
    print_report(console, report)
    console.print(f"Report: {page}", highlight=False, markup=False, soft_wrap=True)


def print_report(console: Console, report: JudgeReport) -> None:
    """The figures as tables, one for each section."""
    console.print(plain(f"{report.source} · {', '.join(report.judges) or 'judge unknown'}"))
    console.print(plain(report.facts))
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
    console.print()
    for note in [*report.notes, *(f"{count:,} unscored: {reason}" for reason, count in report.unscored.items())]:
        console.print(plain(note))
