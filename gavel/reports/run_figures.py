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
from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.reports.charts import CurvePoint, CurvesChart, curves_chart
from gavel.reports.statistics import Curve
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.loop.evaluation import call_measure, interval
from gavel.trainer.runs.metrics import whole_rows
from gavel.trainer.runs.run_directory import RunDirectoryError, read_description

Row = dict[str, Any]
_CHARTS: Sequence[tuple[str, str, Sequence[tuple[str, str]]]] = (
    (
        "Held-out",
        "of the held-out tasks, with 95 % intervals of success",
        (("held_out", "success"), ("held_out", "wins/base"), ("held_out", "truncated")),
    ),
    ("Reward", "means of each step's rollouts", (("train", "reward"), ("train", "judge_score"), ("train", "success"))),
    ("Loss", "", (("train", "loss"), ("sft", "loss"))),
    ("KL and drift", "nats a token", (("train", "kl"), ("train", "kl_in_reward"), ("train", "logprob_drift"))),
    ("Entropy", "nats a token", (("train", "entropy"),)),
    ("Gradient norm", "", (("train", "gradient_norm"), ("sft", "gradient_norm"))),
    ("Clipped", "share of tokens", (("train", "clip_fraction_low"), ("train", "clip_fraction_high"))),
    ("Staleness", "steps", (("train", "staleness/mean"), ("train", "staleness/max"))),
    ("Learning rate", "", (("train", "learning_rate"), ("sft", "learning_rate"))),
    ("Seconds a step", "", (("times", "rollout"), ("times", "judge"), ("times", "train"))),
)
"""Title, unit, and the figures (split, name) of each chart; one without figures is not drawn."""
_BY_SCENARIO = (
    ("Held-out success", "held_out", "success"),
    ("Wins over the base", "held_out", "wins/base"),
    ("Reward", "train", "reward"),
)
"""Title, split and metric of the charts of a run with several scenarios."""
STEP_COLUMNS = ("reward", "success", "loss", "entropy", "kl", "gradient_norm", "cut", "judge/cost_usd")
JUDGED_SPLITS = ("train", "iterations", "held_out")
"""Splits whose rows tell the judge's calls and cost."""
_NO_MEASURES = {"success", "reward", "failed", "trajectories", "exceptions", "step", "split", "time"}


@dataclass(frozen=True, slots=True)
class RunRows:
    """The whole rows of a run's metrics.jsonl."""

    rows: list[Row]
    damage: tuple[str, ...] = ()
    """Files of the run that cannot be read, with the remedy."""


@dataclass(frozen=True, slots=True)
class RunAgreement:
    """Kendall's tau within groups, by training step."""

    judge_hand: Curve
    judge_truth: Curve


def read_run(directory: Path) -> RunRows:
    """Raises `GavelError` for a directory without a run, and for metrics that cannot be read at all."""
    model = directory / "model.json"
    if not model.is_file():
        raise GavelError(f"{directory} is no run: it has no model.json.", "`gavel runs` lists the runs.")
    damage: list[str] = []
    try:
        read_description(model)
    except RunDirectoryError as error:
        told = "The figures do not need it, but the run cannot go on: restore it from a copy."
        damage.append(f"{error.message}. {told}")
    metrics = whole_rows(directory / "metrics.jsonl")
    return RunRows(metrics.rows, (*damage, *filter(None, [metrics.damage])))


def curve_of(rows: Sequence[Row], split: str, name: str) -> Curve:
    """A figure by step."""
    of_split = training_rows(rows) if split == "train" else [row for row in rows if row["split"] == split]
    return {row["step"]: float(row[name]) for row in of_split if _is_number(row.get(name))}


def by_scenario(rows: Sequence[Row], split: str, metric: str) -> list[str]:
    """The names of a figure of each scenario, `retail/success`, in a run with several."""
    names = dict.fromkeys(name for row in rows if row["split"] == split for name in row)
    return [name for name in names if name.endswith(f"/{metric}") and not name.startswith(("metric/", "reward/"))]


def run_charts(rows: Sequence[Row]) -> list[tuple[str, str, CurvesChart]]:
    """Title, unit and curves of everything that is worth a curve, and that the run has."""
    wanted = list(_CHARTS)
    for title, split, metric in _BY_SCENARIO:
        wanted.append((title, "by scenario", [(split, name) for name in by_scenario(rows, split, metric)]))
    drawn = [(title, unit, _chart(rows, names)) for title, unit, names in wanted]
    return [(title, unit, chart) for title, unit, chart in drawn if chart is not None]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step, or one evaluation."""

    step: int
    figures: dict[str, float | None]
    """Values of the `STEP_COLUMNS` that the run has."""
    held_out: float | None
    left_out: list[tuple[int, str]]
    """(how many, what)"""


def step_rows(rows: Sequence[Row]) -> list[StepRow]:
    """Newest first."""
    training = {row["step"]: row for row in training_rows(rows)}
    held_out = curve_of(rows, "held_out", "success")
    evaluated = {row["step"] for row in rows if row["split"] == "held_out"}
    curves = {name: curve for name in STEP_COLUMNS if (curve := curve_of(rows, "train", name))}
    return [
        StepRow(
            step,
            {name: curve.get(step) for name, curve in curves.items()},
            held_out.get(step),
            [(count, sentence_of(key)) for key, count in left_out_of([training[step]]).items() if count]
            if step in training
            else [],
        )
        for step in sorted(training.keys() | evaluated, reverse=True)
    ]


def measures_of(rows: Sequence[Row]) -> dict[str, Curve]:
    """Figures of held-out attempts by step, all but success and counts."""
    names = dict.fromkeys(
        name
        for row in rows
        if row["split"] == "held_out"
        for name in row
        if name not in _NO_MEASURES and not name.startswith("judge/")
    )
    curves = {name: curve_of(rows, "held_out", name) for name in names}
    return {name: curve for name, curve in curves.items() if curve}


def alarms_of(rows: Sequence[Row]) -> dict[str, int]:
    """The step at which each alarm about the judge was raised."""
    found = (row for row in rows if row["split"] == "alarms" and isinstance(row.get("alarm"), str))
    return {row["alarm"]: row["step"] for row in found}


def total_of(rows: Sequence[Row], split: str, name: str) -> float:
    return math.fsum(curve_of(rows, split, name).values())


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
            parts = ("rollout", "judge", "train", "evaluation", "whole")
            found.update({name: row[name] for name in parts if _is_number(row.get(name))})
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
    for row in rows:
        for name, value in row.items():
            if row["split"] == "train" and name.startswith("left_out/") and _is_number(value):
                found[name.removeprefix("left_out/")] += int(value)
    return found


def stored_groups(directory: Path, split: str) -> Iterator[tuple[int, TrajectoryGroup]]:
    """(step, group) of every stored group, in order."""
    for file in sorted((directory / "trajectories" / split).glob("*.jsonl.zst")):
        for group in TrajectoryStore(file).read():
            yield int(file.name.partition(".")[0]), group


def hand_reward_of(scenario: Scenario | None, trajectory: Trajectory) -> float | None:
    """The stored hand-written reward, else as the scenario computes it from the trajectory; None if neither is
    possible."""
    if "reward/hand" in trajectory.metrics:
        return float(trajectory.metrics["reward/hand"])
    if scenario is None or scenario.hand_reward is None or trajectory.status == "failed":
        return None
    try:
        return call_measure(scenario, "hand_reward", scenario.hand_reward, trajectory)
    except ScenarioError:  # it needs the world of the episode, which is over
        return None


def agreement_over_training(directory: Path, scenario: Scenario | None) -> RunAgreement:
    """Agreement over the run's judged groups by step; empty where no judge scored."""
    hands: dict[int, list[list[tuple[float, float]]]] = {}
    truths: dict[int, list[list[tuple[float, float]]]] = {}
    for step, group in stored_groups(directory, "train"):
        scored = [(each.judgement.score, each) for each in group if each.judgement and each.judgement.score is not None]
        by_hand = [(score, hand_reward_of(scenario, member)) for score, member in scored]
        hands.setdefault(step, []).append([(score, value) for score, value in by_hand if value is not None])
        truths.setdefault(step, []).append(
            [(score, float(member.metrics["success"])) for score, member in scored if "success" in member.metrics]
        )
    return RunAgreement(_taus(hands), _taus(truths))


def _taus(pairs: Mapping[int, list[list[tuple[float, float]]]]) -> dict[int, float]:
    found = {step: mean_kendall_tau(of_step) for step, of_step in pairs.items()}
    return {step: tau for step, tau in found.items() if tau is not None}


def _chart(rows: Sequence[Row], names: Sequence[tuple[str, str]]) -> CurvesChart | None:
    curves = {
        (f"sft {name}" if split == "sft" else name): _points(rows, split, name, curve)
        for split, name in names
        if (curve := curve_of(rows, split, name))
    }
    signed = any(point.value < 0 for curve in curves.values() for point in curve.values())
    return curves_chart(curves, low=None if signed else 0)


def _points(rows: Sequence[Row], split: str, name: str, curve: Curve) -> dict[int, CurvePoint]:
    """The curve's points with the 95 % interval of a share of held-out tasks."""
    is_success = (split, name) == ("held_out", "success")
    tasks = curve_of(rows if is_success else (), split, "trajectories")
    points = {step: CurvePoint(value) for step, value in curve.items()}
    for step, value in curve.items():
        if count := tasks.get(step):
            half = interval(min(max(value, 0), 1), int(count))
            points[step] = CurvePoint(value, max(0, value - half), min(1, value + half))
    return points


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
