"""The figures of one run for its page: a row for each step, and the curves."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavel.reports.charts import Chart, share_curve
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.loop.evaluation import interval
from gavel.trainer.runs.metrics import whole_rows

_LEFT_OUT = "left_out/"
_SHOWN = ("reward", "success", "loss", "entropy", "kl", "gradient_norm", "judge/cost_usd")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step."""

    step: int
    figures: dict[str, float | None]
    """`_SHOWN`, those that the run has."""
    held_out: float | None
    left_out: list[tuple[int, str]]
    """(how many, what)"""


@dataclass(frozen=True, slots=True)
class RunFigures:
    columns: list[str]
    steps: list[StepRow]
    """Newest first."""
    curves: list[tuple[str, Chart]]


def run_figures(directory: Path) -> RunFigures:
    """From metrics.jsonl; nothing where there is none. Raises `MetricsError` for one that cannot be read."""
    rows = whole_rows(directory / "metrics.jsonl").rows
    training: dict[int, Mapping[str, Any]] = {row["step"]: row for row in rows if row["split"] == "train"}
    evaluations: dict[int, Mapping[str, Any]] = {row["step"]: row for row in rows if row["split"] == "held_out"}
    columns = [name for name in _SHOWN if any(_number(row.get(name)) is not None for row in training.values())]
    steps = [
        StepRow(
            step=step,
            figures={name: _number(training.get(step, {}).get(name)) for name in columns},
            held_out=_number(evaluations.get(step, {}).get("success")),
            left_out=_left_out(training.get(step, {})),
        )
        for step in sorted(training.keys() | evaluations.keys(), reverse=True)
    ]
    curves = [
        ("Success on held-out tasks", _curve(evaluations, "success", "trajectories")),
        ("Wins against the base on held-out tasks, by the judge", _curve(evaluations, "wins/base")),
        ("Mean reward of a step", _curve(training, "reward")),
    ]
    return RunFigures(columns, steps, [(title, chart) for title, chart in curves if chart is not None])


def _left_out(row: Mapping[str, Any]) -> list[tuple[int, str]]:
    return [
        (int(value), sentence_of(name.removeprefix(_LEFT_OUT)))
        for name, value in row.items()
        if name.startswith(_LEFT_OUT) and _number(value)
    ]


def _curve(rows: Mapping[int, Mapping[str, Any]], name: str, count: str | None = None) -> Chart | None:
    points: list[tuple[int, float, float | None, str]] = []
    for step, row in sorted(rows.items()):
        value = _number(row.get(name))
        if value is None or not 0 <= value <= 1:
            continue
        tasks = _number(row.get(count)) if count else None
        points.append((step, value, interval(value, int(tasks)) if tasks else None, f"step {step}: {value:.3f}"))
    return share_curve(points) if points else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
