"""Models measured on several scenarios: a table of scenarios by models, with intervals, costs and times.

    table["returns_desk"]["openai/gpt-5-mini"].success       one cell
    table.mean("openai/gpt-5-mini")                          over the scenarios, each counting the same

A scenario that could not be evaluated is named with the reason, and is in no mean.
"""

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from gavel.reports.demo_page import duration
from gavel.reports.model_statistics import TaskMean
from gavel.reports.model_table import ModelRow, ModelTable, as_json, cost_text, csv_rows, outcome, ranking
from gavel.reports.page import render_page, write_page

_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class ScenarioTable:
    """What `gavel evaluate A B …` found."""

    tables: list[ModelTable]
    """One for each scenario that was evaluated, in the order in which they were named."""
    directory: Path
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a scenario could not be evaluated, by the name that it was asked for by."""

    def __getitem__(self, scenario: str) -> ModelTable:
        return next(table for table in self.tables if table.scenario == scenario)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.name for table in self.tables for row in table.rows))

    def row(self, table: ModelTable, model: str) -> ModelRow | None:
        """The model's figures on one scenario."""
        return next((row for row in table.rows if row.name == model), None)

    def mean(self, model: str) -> TaskMean:
        """Success over the scenarios that know it, each with the same weight; the interval is that of their own errors
        (normal approximation, from the widths of their 95 % intervals)."""
        rows = [row for table in self.tables if (row := self.row(table, model)) is not None]
        known = [row.success for row in rows if row.success.value is not None]
        if not known or len(known) < sum(any(r.success.tasks for r in t.rows) for t in self.tables):
            return TaskMean(None, None, None, 0)
        value = fmean(each.value or 0.0 for each in known)
        tasks = sum(each.tasks for each in known)
        widths = [(each.low, each.high) for each in known]
        if any(low is None or high is None for low, high in widths):
            return TaskMean(value, None, None, tasks)
        errors = [((high or 0.0) - (low or 0.0)) / (2 * _Z95) for low, high in widths]
        half = _Z95 * math.sqrt(math.fsum(error**2 for error in errors)) / len(errors)
        return TaskMean(value, max(0.0, value - half), min(1.0, value + half), tasks)

    def cost(self, model: str) -> float | None:
        """US dollars of sampling; None where a scenario's are not known."""
        costs = [row.cost_usd for table in self.tables if (row := self.row(table, model)) is not None]
        return None if None in costs else math.fsum(cost for cost in costs if cost is not None)


def figure(row: ModelRow | None) -> TaskMean:
    """Success, or the judge's score where success is not known."""
    if row is None:
        return TaskMean(None, None, None, 0)
    return row.success if row.success.tasks else row.score


def seconds_of(*rows: ModelRow | None) -> str:
    """Of an episode, on average over these scenarios."""
    known = [row for row in rows if row is not None and row.episodes]
    episodes = sum(row.episodes for row in known)
    return duration(sum(row.seconds for row in known) / episodes) if episodes else "–"


def by_judge(table: ModelTable) -> bool:
    """Whether its figures are the judge's scores."""
    return not any(row.success.tasks for row in table.rows)


def write_scenario_table(table: ScenarioTable) -> Path:
    """Writes report.html, evaluation.csv and evaluation.json of all; returns the page. Raises `GavelError`."""
    folder, text = table.directory, io.StringIO()
    lines: list[list[str]] = []
    for each in table.tables:
        header, *rows = csv_rows(each)
        lines += ([] if lines else [["scenario", *header]]) + [[each.scenario, *row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows(lines)
    scenarios = [json.loads(as_json(each)) for each in table.tables]
    means = [
        {"model": name, "success": asdict(table.mean(name)), "cost_usd": table.cost(name)} for name in table.models
    ]
    whole = {"scenarios": scenarios, "models": means, "failed": dict(table.failed)}
    write_page(folder / "evaluation.csv", text.getvalue())
    write_page(folder / "evaluation.json", json.dumps(whole, indent=1) + "\n")
    write_page(folder / "report.html", render_scenario_table(table))
    return folder / "report.html"


def render_scenario_table(table: ScenarioTable) -> str:
    """The page's HTML; it links to the page of each scenario."""
    models = table.models
    cells = [
        (
            each,
            by_judge(each),
            _link(each.directory / "report.html", table.directory),
            [figure(table.row(each, name)).text() for name in models],
        )
        for each in table.tables
    ]
    several = sum(not by_judge(each) for each in table.tables) > 1
    return render_page(
        "scenario_page.html.j2",
        outcome=_outcome(table, several),
        models=models,
        cells=cells,
        means=[table.mean(name).text() for name in models] if several else [],
        costs=[cost_text(table.cost(name)) for name in models],
        details=[(each, _details(each)) for each in table.tables],
        failed=table.failed.items(),
    )


def _outcome(table: ScenarioTable, several: bool) -> list[str]:
    named = len(table.tables) + len(table.failed)
    failed = [f"{len(table.failed)} of {named} scenarios could not be evaluated: see below."] if table.failed else []
    if several:
        means = {name: table.mean(name) for name in table.models}
        return [*ranking(means, "Mean held-out success"), *failed]
    return [*(f"{each.scenario}: {line}" for each in table.tables for line in outcome(each)), *failed]


def _details(table: ModelTable) -> list[list[str]]:
    return [
        [
            row.name,
            row.success.text(),
            row.score.text(),
            row.wins.text(),
            f"{row.truncated:.2f}",
            f"{row.failed} of {row.failed + row.episodes}",
            cost_text(row.cost_usd),
            seconds_of(row),
        ]
        for row in table.rows
    ]


def _link(page: Path, folder: Path) -> str:
    return Path(os.path.relpath(page, folder)).as_posix()
