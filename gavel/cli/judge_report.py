"""`gavel judge report`: how far a judge can be trusted, as a table and as one HTML file that needs nothing else."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from gavel.cli.terminal import plain
from gavel.judge.audit.agreement import center
from gavel.reports.charts import histogram, place_chart, scatter_chart, verdict_chart
from gavel.reports.judge import JudgeReport, read_report
from gavel.reports.page import render_page, write_page
from gavel.scenarios.jsonl import read_groups

_MOST_DOTS = 800
"""More would make the page heavy and the chart no clearer."""


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
        table.add_column("what it says", style="dim")
        for figure in section.figures:
            table.add_row(figure.name, figure.value, figure.interval, f"{figure.estimate.groups:,}", figure.meaning)
        console.print(table)
    console.print()
    for note in [*report.notes, *(f"{count:,} unscored: {reason}" for reason, count in report.unscored.items())]:
        console.print(plain(note))


def render_report(report: JudgeReport) -> str:
    """The page's HTML."""
    errors = [j.standard_error for j in report.judgements if j.standard_error is not None]
    slots = max(report.bias.position_means.items(), key=lambda item: item[1].ballots, default=None)
    return render_page(
        "judge_report.html.j2",
        report=report,
        scores=histogram([j.score for j in report.judgements if j.score is not None], 1.0, 1),
        errors=histogram(errors, _round_up(max(errors)), 2) if errors else None,
        places=None if slots is None else (slots[0], slots[1].ballots, place_chart(slots[1].means)),
        reference=_reference_chart(report),
        matrix=_matrix(report),
    )


def _round_up(value: float) -> float:
    """To a tenth that leaves bins of whole hundredths."""
    return max(0.1, -(-round(value * 100) // 10) / 10)


def _reference_chart(report: JudgeReport) -> tuple[str, object] | None:
    """`labels` with bars, or `graded` with dots of what score and reference have over their group's mean."""
    values = {value for pairs in report.pairs for _, value in pairs}
    if len(values) < 2:
        return None
    if len(values) == 2:
        verdicts = [(score, value == max(values)) for pairs in report.pairs for score, value in pairs]
        return "labels", verdict_chart(verdicts)
    dots = [
        dot
        for pairs in report.pairs
        if pairs
        for dot in zip(*(center(side) for side in zip(*pairs, strict=True)), strict=True)
    ]
    return "graded", scatter_chart(dots[:: -(-len(dots) // _MOST_DOTS)])


def _matrix(report: JudgeReport) -> list[tuple[str, list[float | None]]]:
    """Each judge with its tau to each of them; empty for one judge, None where there is none."""
    if report.between_judges is None:
        return []
    judges, pairs = report.between_judges.raters, report.between_judges.pairs
    taus = {pair: agreement.tau.value for pair, agreement in pairs.items()}

    def tau(one: str, other: str) -> float | None:
        return 1.0 if one == other else taus.get((one, other), taus.get((other, one)))

    return [(one, [tau(one, other) for other in judges]) for one in judges]
