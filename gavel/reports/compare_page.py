"""The report of a comparison as one self-contained HTML page, with the same figures as CSV and JSON.

Trajectories are untrusted: the template escapes every value, contains no script, and its content security policy
allows none.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from gavel.reports.blind_ranking import BlindRanking
from gavel.reports.charts import CurvePoint, CurvesChart, curves_chart
from gavel.reports.comparison import (
    Arm,
    Comparison,
    alarms_text,
    as_json,
    cost_text,
    csv_rows,
    outcome,
    steps_text,
)
from gavel.reports.demo_page import duration
from gavel.reports.page import render_page, write_page
from gavel.reports.seed_statistics import Curve, curve_over_seeds, with_interval


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
        "Reward and success": _chart(
            {
                name: curves
                for arm in arms
                if any(cell.rewarded for cell in arm.cells)
                for name, curves in (
                    (f"{arm.name}: reward", [cell.rewarded for cell in arm.cells]),
                    (f"{arm.name}: success", [cell.train_success for cell in arm.cells]),
                )
            },
            *_span(arms),
        ),
    }
    labels = {
        "Held-out success": "share of tasks, mean and 95 % bootstrap band over seeds",
        "Judge and hand": "Kendall's tau within groups of training rollouts",
        "Judge and truth": "Kendall's tau within groups of training rollouts",
        "Reward and success": "means of the training rollouts; of a sum, the mean of its parts",
    }
    return render_page(
        "compare_page.html.j2",
        comparison=comparison,
        charts=[(name, labels[name], chart) for name, chart in charts.items() if chart is not None],
        statements=outcome(comparison),
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
        blind=comparison.blind,
        ranked=_ranked(comparison.blind),
        few=min(len(arm.cells) for arm in arms) < 5,
    )


def _span(arms: Sequence[Arm]) -> tuple[float | None, float | None]:
    """0 to 1, or what the rewards need where a hand-written one goes beyond."""
    values = [value for arm in arms for cell in arm.cells for value in cell.rewarded.values()]
    return (0, 1) if all(0 <= value <= 1 for value in values) else (None, None)


def _ranked(blind: BlindRanking | None) -> list[tuple[str, str, list[str]]]:
    """Each contender's wins against all others, and against each."""
    if blind is None:
        return []
    rates = {one: [blind.beats(one, other) for other in blind.contenders] for one in blind.contenders}
    return [
        (one, blind.overall[one].text, ["–" if rate is None else rate.text for rate in against])
        for one, against in rates.items()
    ]


def _chart(named: Mapping[str, Sequence[Curve]], low: float | None, high: float | None) -> CurvesChart | None:
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
