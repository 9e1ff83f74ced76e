"""The progress and the table of a comparison in the terminal."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gavel.cli.compare_cells import Cell
from gavel.cli.compare_session import cores, plan_cells, run_comparison
from gavel.cli.named_scenario import scenario_named
from gavel.cli.terminal import plain
from gavel.llm.counted import counted
from gavel.reports.comparison import Comparison, alarms_text, cost_text, signed, statement, steps_text, with_interval
from gavel.reports.demo_page import duration
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root


async def train_and_print(
    config: RunConfig,
    rewards: Sequence[str],
    judges: Sequence[str],
    seeds: int,
    margin: float,
    threshold: float,
    parallel: int | None,
) -> None:
    """Runs the cells with a line for each, then prints the table."""
    console = Console()
    scenario = scenario_named(config.scenario)
    root = runs_root() / "compare"
    cells = plan_cells(config, scenario, root, rewards, judges, seeds)
    at_once = parallel or cores()
    finished = sum(cell.finished() for cell in cells)
    again = f" · {finished} finished before" if finished else ""
    console.print(
        plain(f"Gavel compare · {scenario.name} · {counted(len(cells), 'run')}, {at_once} at once{again}"),
        soft_wrap=True,
    )
    started, ran_before = time.monotonic(), [0, 0]
    progress = Progress(
        TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[left]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = progress.add_task("", total=len(cells), left="")

    def done(cell: Cell, ran: bool) -> None:
        ran_before[0] += 1
        ran_before[1] += ran
        left = ""
        if ran:
            seconds = (time.monotonic() - started) / ran_before[1] * (len(cells) - ran_before[0])
            left = f"about {duration(seconds)} left" if seconds else ""
            if not console.is_terminal:
                console.print(plain(f"{ran_before[0]}/{len(cells)}  {cell.label} done  {left}"), soft_wrap=True)
        progress.update(task, advance=1, left=left)

    if console.is_terminal:
        progress.start()
    try:
        comparison = await run_comparison(
            cells, scenario, root, margin=margin, threshold=threshold, parallel=at_once, done=done
        )
    finally:
        progress.stop()
    print_comparison(comparison)


def print_comparison(comparison: Comparison) -> None:
    """The table, the statements about judge and hand (all, where these are not compared), and the report's path."""
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in (
        "held-out success",
        f"steps to {comparison.threshold:.2f}",
        "judge's gap to success",
        "cost, USD",
        "time",
    ):
        table.add_column(heading, justify="right")
    for arm in comparison.arms:
        gap = signed(arm.hacking_gap.value)
        row = (arm.name, with_interval(arm.final), steps_text(arm), gap, cost_text(arm), duration(arm.seconds))
        table.add_row(*map(plain, row))
    console.print(table)
    if comparison.before:
        console.print(_measures(comparison))
    for arm in comparison.arms:
        if any(cell.alarms for cell in arm.cells):
            console.print(plain(f"Alarms about the judge, trained on {arm.name}: {alarms_text(arm)}"), soft_wrap=True)
    chosen = {name: each for name, each in comparison.paired.items() if name == "judge - hand"} or comparison.paired
    for name, difference in chosen.items():
        console.print(plain(statement(name, difference)), soft_wrap=True)
    report: Path = comparison.directory / "report.html"
    console.print(plain(f"Report: {report}"), soft_wrap=True)


def _measures(comparison: Comparison) -> Table:
    """What held-out attempts are like before training and after it, by reward."""
    table = Table(box=None, pad_edge=False)
    table.add_column("held-out attempts", overflow="fold")
    for name in comparison.before:
        table.add_column(plain(name.replace("_", " ")), justify="right")
    for label, found in (
        ("before training", comparison.before),
        *((arm.name, arm.measures) for arm in comparison.arms),
    ):
        values = (with_interval(found[name]) if name in found else "–" for name in comparison.before)
        table.add_row(*map(plain, (label, *values)))
    return table
