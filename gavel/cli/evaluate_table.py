"""The table of models that `gavel evaluate` prints."""

from rich.console import Console
from rich.table import Table

from gavel.base.text import counted
from gavel.cli.figure_table import print_figures
from gavel.cli.terminal import plain
from gavel.reports.model_table import ModelTable, ScenarioTable, by_judge, cost_text, figure, seconds_of


def print_model_table(console: Console, table: ModelTable) -> None:
    """A row for each model; with one model, a row for each figure. Then what is missing, costs, and the report."""
    console.print(plain(_outcome(table)), soft_wrap=True)
    samples = f", {counted(table.samples, 'sample')} of each" if table.samples > 1 else ""
    heading = f"{counted(table.tasks, 'held-out task')}{samples}"
    if len(table.rows) == 1:
        _print_figures(console, table, heading)
    else:
        _print_models(console, table, heading)
    for row in table.rows:
        if row.failed:
            console.print(
                plain(f"{row.name}: {counted(row.failed, 'episode')} failed; the same command tries again"),
                soft_wrap=True,
            )
        for reason, count in row.unscored.items():
            console.print(plain(f"{row.name}: {count:,} unscored: {reason}"), soft_wrap=True)
    if table.judges:
        cost = f" · {table.judge_cost}" if table.judge_cost else ""
        console.print(plain(f"Judge {', '.join(table.judges)}{cost}"), soft_wrap=True)
    console.print(plain(f"Report: {table.directory / 'report.html'}"), soft_wrap=True)


def _outcome(table: ModelTable) -> str:
    """What came of it in a sentence, by success, or by the judge where success is not known."""
    known = any(row.success.tasks for row in table.rows)
    by = "success" if known else "the judge's score"
    figures = {row.name: row.success if known else row.score for row in table.rows}
    names = sorted(figures, key=lambda name: -(figures[name].value or 0.0))
    first, tasks = figures[names[0]], counted(table.tasks, "held-out task")
    if first.value is None:
        return f"Nothing was measured: no episode on {tasks} has a success, or a score."
    told = f"{names[0]}: {by} {first.short()} on {tasks}"
    if len(names) == 1:
        return f"{told}."
    second = figures[names[1]]
    apart = first.low is not None and second.high is not None and first.low > second.high
    overlap = "" if apart else "; their intervals overlap"
    return f"Highest of {len(names)} models: {told}; next {names[1]}: {second.short()}{overlap}."


def _print_models(console: Console, table: ModelTable, heading: str) -> None:
    console.print(plain(f"{heading} (95 % intervals)"))
    several, known = table.samples > 1, any(row.success.tasks for row in table.rows)
    headings = [*(["success"] if known else []), *([f"pass@{table.samples}"] if several and known else [])]
    headings += ["judge", "wins"] if table.judges else []
    rows: list[list[str]] = []
    for row in table.rows:
        cells = [row.success.short()] if known else []
        if several and known:
            cells.append(row.pass_at[table.samples].short() if table.samples in row.pass_at else "–")
        cells += [row.score.short(), row.wins.short()] if table.judges else []
        rows.append([row.name, *cells, cost_text(row.cost_usd)])
    print_figures(console, ["", *headings, "USD"], rows)


def _print_figures(console: Console, table: ModelTable, heading: str) -> None:
    (row,) = table.rows
    grid = Table(box=None, pad_edge=False, header_style="")
    grid.add_column(heading)
    grid.add_column("mean (95 % interval)", justify="right")
    figures = {"success": row.success} if row.success.tasks else {}
    figures |= {f"pass@{k}": each for k, each in row.pass_at.items() if table.samples > 1}
    for name, estimate in figures.items():
        grid.add_row(plain(name), plain(estimate.text(3)))
    for name, value in row.measures.items():
        grid.add_row(plain(name.replace("_", " ")), f"{value:.3f}")
    grid.add_row("truncated", f"{row.truncated:.3f}")
    if table.judges:
        grid.add_row("judge's score", plain(row.score.text(3)))
    if row.cost_usd != 0:
        grid.add_row("USD", plain(cost_text(row.cost_usd)))
    console.print(grid)


def print_scenario_table(console: Console, table: ScenarioTable) -> None:
    """A row for each model: its success on each scenario (the judge's score where success is not known), the mean over
    scenarios, US dollars and the seconds of an episode. Then what could not be evaluated, and the report."""
    headings = [f"{each.scenario}{' (judge)' if by_judge(each) else ''}" for each in table.tables]
    several = sum(not by_judge(each) for each in table.tables) > 1
    lines: list[list[str]] = []
    for name in table.models:
        rows = [table.row(each, name) for each in table.tables]
        cells = [figure(row).short() for row in rows] + ([table.mean(name).short()] if several else [])
        lines.append([name, *cells, cost_text(table.cost(name)), seconds_of(*rows)])
    print_figures(console, ["", *headings, *(["mean"] if several else []), "USD", "an episode"], lines)
    for name, reason in table.failed.items():
        console.print(plain(f"{name} was not evaluated: {reason}"), soft_wrap=True)
    console.print(plain(f"Report: {table.directory / 'report.html'}"), soft_wrap=True)
