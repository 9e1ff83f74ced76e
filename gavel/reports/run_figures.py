"""Reads a run's figures for reports, of any kind of run, also while it goes on.

The last line of metrics.jsonl may be torn while the run writes it; figures that a run lacks are absent, never 0.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavel.base.errors import GavelError
from gavel.reports.charts import Chart, CurvePoint, curves_chart
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.loop.evaluation import interval
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_directory import RunDirectoryError, read_description

Row = dict[str, Any]
Curve = Mapping[int, float]
"""Value by training step."""
_CHARTS: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "Held-out",
        "of the held-out tasks, with 95 % intervals of success",
        ("held_out/success", "held_out/wins/base", "held_out/truncated"),
    ),
    ("Reward", "means of each step's rollouts", ("train/reward", "train/judge_score", "train/success")),
    ("Loss", "", ("train/loss", "sft/loss")),
    ("KL and drift", "nats a token", ("train/kl", "train/kl_in_reward", "train/logprob_drift")),
    ("Entropy", "nats a token", ("train/entropy",)),
    ("Gradient norm", "", ("train/gradient_norm", "sft/gradient_norm")),
    ("Clipped", "share of tokens", ("train/clip_fraction_low", "train/clip_fraction_high")),
    ("Staleness", "steps", ("train/staleness/mean", "train/staleness/max")),
    ("Learning rate", "", ("train/learning_rate", "sft/learning_rate")),
    ("Seconds a step", "", ("times/rollout", "times/judge", "times/train")),
)
"""Title, unit, and the figures (split/name) of each chart; one without figures is not drawn."""
_BY_SCENARIO = {
    "Held-out success": "held_out/success",
    "Wins over the base": "held_out/wins/base",
    "Reward": "train/reward",
}
"""Figures that a run with several scenarios has of each, by the chart's title."""
_STEP_COLUMNS = ("reward", "success", "loss", "entropy", "kl", "gradient_norm", "cut", "judge/cost_usd")
JUDGED_SPLITS = ("train", "iterations", "held_out")
"""Splits whose rows tell the judge's calls and cost."""
_PHASES = ("rollout", "judge", "train", "evaluation", "whole")


@dataclass(frozen=True, slots=True)
class RunRows:
    """The whole rows of a run's metrics.jsonl."""

    rows: list[Row]
    damage: tuple[str, ...] = ()
    """Files of the run that cannot be read, with the remedy."""


def read_run(directory: Path) -> RunRows:
    """Raises `GavelError` for a directory without a run, and for metrics that cannot be read at all."""
    model, damage = directory / "model.json", ""
    if not model.is_file():
        raise GavelError(f"{directory} is no run: it has no model.json.", "`gavel runs` lists the runs.")
    try:
        read_description(model)
    except RunDirectoryError as error:
        damage = f"{error.message}. The figures do not need it, but the run cannot go on: restore it from a copy."
    metrics = whole_rows(directory / "metrics.jsonl")
    return RunRows(metrics.rows, tuple(filter(None, (damage, metrics.damage))))


def curve_of(rows: Sequence[Row], split: str, name: str) -> Curve:
    """A figure by step."""
    of_split = training_rows(rows) if split == "train" else [row for row in rows if row["split"] == split]
    return {row["step"]: float(row[name]) for row in of_split if _is_number(row.get(name))}


def run_charts(rows: Sequence[Row]) -> list[tuple[str, str, Chart]]:
    """Title, unit and curves of everything that is worth a curve, and that the run has."""
    names = dict.fromkeys(f"{row['split']}/{name}" for row in rows for name in row)
    wanted = list(_CHARTS)
    for title, figure in _BY_SCENARIO.items():
        split, _, metric = figure.partition("/")
        others = f"{split}/metric/", f"{split}/reward/"
        of_scenarios = [each for each in names if each.startswith(f"{split}/") and each.endswith(f"/{metric}")]
        wanted.append((title, "by scenario", [e for e in of_scenarios if e != figure and not e.startswith(others)]))
    drawn = [(title, unit, _chart(rows, figures)) for title, unit, figures in wanted]
    return [(title, unit, chart) for title, unit, chart in drawn if chart is not None]


def _chart(rows: Sequence[Row], figures: Sequence[str]) -> Chart | None:
    tasks, curves = curve_of(rows, "held_out", "trajectories"), dict[str, dict[int, CurvePoint]]()
    for figure in figures:
        split, _, name = figure.partition("/")
        counts: Curve = tasks if figure == "held_out/success" else {}
        if curve := curve_of(rows, split, name):
            named = figure.replace("/", " ") if split == "sft" else name
            curves[named] = {step: share_point(value, counts.get(step)) for step, value in curve.items()}
    signed = any(point.value < 0 for curve in curves.values() for point in curve.values())
    return curves_chart(curves, low=None if signed else 0)


def share_point(value: float, tasks: float | None) -> CurvePoint:
    """A point of a curve; with `tasks`, that of a share of them, which has a 95 % interval."""
    half = interval(min(max(value, 0), 1), int(tasks)) if tasks else 0.0
    return CurvePoint(value, max(0.0, value - half), min(1.0, value + half)) if tasks else CurvePoint(value)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step, or one evaluation."""

    step: int
    figures: dict[str, float | None]
    """Values of the columns that the run has."""
    held_out: float | None
    left_out: list[tuple[int, str]]
    """(how many, what)"""


def step_rows(rows: Sequence[Row]) -> list[StepRow]:
    """Newest first."""
    training = {row["step"]: row for row in training_rows(rows)}
    held_out = curve_of(rows, "held_out", "success")
    evaluated = {row["step"] for row in rows if row["split"] == "held_out"}
    curves = {name: curve for name in _STEP_COLUMNS if (curve := curve_of(rows, "train", name))}
    found: list[StepRow] = []
    for step in sorted(training.keys() | evaluated, reverse=True):
        left_out = left_out_of([training[step]] if step in training else [])
        figures = {name: curve.get(step) for name, curve in curves.items()}
        told = [(count, sentence_of(key)) for key, count in left_out.items() if count]
        found.append(StepRow(step, figures, held_out.get(step), told))
    return found


def total_of_judging(rows: Sequence[Row], name: str) -> float:
    """The sum of a figure over all rows that tell of judging."""
    return math.fsum(value for split in JUDGED_SPLITS for value in curve_of(rows, split, name).values())


def cost_of(rows: Sequence[Row]) -> float | None:
    """Dollars of the judge; None where a row's are not known."""
    judged = [row for row in rows if row["split"] in JUDGED_SPLITS and row.get("judge/calls")]
    known = [row["judge/cost_usd"] for row in judged if _is_number(row.get("judge/cost_usd"))]
    return math.fsum(known) if len(known) == len(judged) else None


def seconds_of(rows: Sequence[Row]) -> dict[str, float]:
    """By phase."""
    found: Counter[str] = Counter()
    for row in rows:
        if row["split"] == "times":
            found.update({name: row[name] for name in _PHASES if _is_number(row.get(name))})
    return dict(found)


def training_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of training steps; others of their split have metrics that a program added."""
    return [row for row in rows if row.get("split") == "train" and ("groups_trained" in row or "loss" in row)]


def is_trained(row: Row) -> bool:
    """Whether a training step changed the adapter."""
    return bool(row.get("groups_trained", row.get("loss") is not None))


def left_out_of(rows: Sequence[Row]) -> Counter[str]:
    """Groups and members not trained on, by the key of `LeftOut`."""
    found: Counter[str] = Counter()
    for name, value in (item for row in rows if row["split"] == "train" for item in row.items()):
        if name.startswith("left_out/") and _is_number(value):
            found[name.removeprefix("left_out/")] += int(value)
    return found


def stored_groups(directory: Path, split: str) -> Iterator[tuple[int, TrajectoryGroup]]:
    """(step, group) of every stored group, in order."""
    for file in sorted((directory / "trajectories" / split).glob("*.jsonl.zst")):
        for group in TrajectoryStore(file).read():
            yield int(file.name.partition(".")[0]), group


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
