"""The report of a comparison as one self-contained HTML page, with the same figures as CSV and JSON.

Trajectories are untrusted: the template escapes every value, contains no script, and its content security policy
allows none.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from gavel.reports.comparison import (
    Comparison,
    alarms_text,
    as_json,
    cost_text,
    csv_rows,
    statement,
    steps_text,
    with_interval,
)
from gavel.reports.curves_chart import CurvePoint, CurvesChart, curves_chart
from gavel.reports.demo_page import duration, turns
from gavel.reports.page import render_page, write_page
from gavel.reports.seed_statistics import Curve, curve_over_seeds


def write_comparison(comparison: Comparison) -> Path:
    """Writes report.html, comparison.csv and comparison.json; returns the page. Raises `GavelError`."""
    folder = comparison.directory
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(csv_rows(comparison))
    write_page(folder / "comparison.csv", table.getvalue())
    write_page(folder / "comparison.json", as_json(comparison) + "\n")
    write_page(folder / "report.html", render_comparison(comparison))
    return folder / "report.html"


def render_comparison(comparison: Comparison) -> str:
    """The page's HTML."""
    arms = comparison.arms
    charts = {
        "Held-out success": _chart({arm.name: [cell.success for cell in arm.cells] for arm in arms}, 0, 1),
        "Judge and hand": _chart({arm.name: [c.agreement.judge_hand for c in arm.cells] for arm in arms}, -1, 1),
        "Judge and truth": _chart({arm.name: [c.agreement.judge_truth for c in arm.cells] for arm in arms}, -1, 1),
        "Judge's score and success": _chart(
            {
                name: curves
                for arm in arms
                if any(cell.judge_score for cell in arm.cells)
                for name, curves in (
                    (f"{arm.name}: judge's score", [cell.judge_score for cell in arm.cells]),
                    (f"{arm.name}: success", [cell.train_success for cell in arm.cells]),
                )
            },
            0,
            1,
        ),
    }
    labels = {
        "Held-out success": "share of tasks, mean and 95 % bootstrap band over seeds",
        "Judge and hand": "Kendall's tau within groups of training rollouts",
        "Judge and truth": "Kendall's tau within groups of training rollouts",
        "Judge's score and success": "means of the training rollouts",
    }
    return render_page(
        "compare_page.html.j2",
        comparison=comparison,
        charts=[(name, labels[name], chart) for name, chart in charts.items() if chart is not None],
        statements=[statement(name, difference) for name, difference in comparison.paired.items()],
        rows=[
            (
                arm.name,
                len(arm.cells),
                with_interval(arm.final),
                with_interval(arm.area),
                steps_text(arm),
                with_interval(arm.hacking_gap, "+"),
                with_interval(arm.tau_hand),
                with_interval(arm.drift_hand, "+"),
                with_interval(arm.tau_truth),
                with_interval(arm.drift_truth, "+"),
                cost_text(arm),
                duration(arm.seconds),
            )
            for arm in arms
        ],
        measures=list(comparison.before),
        measured=[
            (name, [with_interval(found[each]) if each in found else "–" for each in comparison.before])
            for name, found in (
                ("before training", comparison.before),
                *((arm.name, arm.measures) for arm in arms),
            )
        ],
        alarms=[(arm.name, alarms_text(arm)) for arm in arms if alarms_text(arm) != "–"],
        few=min(len(arm.cells) for arm in arms) < 5,
        turns=turns,
    )


def _chart(named: Mapping[str, Sequence[Curve]], low: float, high: float) -> CurvesChart | None:
    return curves_chart(
        {
            name: {
                step: CurvePoint(mean.value, mean.low, mean.high)
                for step, mean in curve_over_seeds([curve for curve in curves if curve]).items()
                if mean.value is not None
            }
            for name, curves in named.items()
        },
        low=low,
        high=high,
    )
