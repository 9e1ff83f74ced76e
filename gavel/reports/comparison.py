"""Runs compared by what they were trained on: one arm for each reward, one run for each seed.

Figures of held-out success are over the seeds; judge - hand is paired by seed. Read from the run directories alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from gavel.base.text import counted, duration
from gavel.reports.charts import CurvePoint, CurvesChart, curves_chart
from gavel.reports.page import render_page, write_results
from gavel.reports.run_figures import (
    RunAgreement,
    agreement_over_training,
    alarms_of,
    cost_of,
    curve_of,
    is_trained,
    measures_of,
    read_run,
    seconds_of,
)
from gavel.reports.statistics import (
    Curve,
    MeanOverSeeds,
    PairedDifference,
    change,
    curve_over_seeds,
    mean_over_seeds,
    paired_difference,
    steps_to,
    with_interval,
)
from gavel.scenarios.scenario import Scenario
from gavel.trainer.loop.judge_alarms import HAND


@dataclass(frozen=True, slots=True)
class CellFigures:
    """One run: one arm and seed."""

    arm: str
    seed: int
    directory: Path
    success: Curve
    """Held-out success by step."""
    heldout_tasks: int
    judge_score: Curve
    """Mean of the training rollouts; empty where no judge scored."""
    rewarded: Curve
    """Mean of what the training rollouts were rewarded for, other than success: the judge's score, the hand-written
    reward, or of both half of each."""
    train_success: Curve
    agreement: RunAgreement
    measures: Mapping[str, Curve]
    """Measures of held-out attempts by step: the scenario's own, turns and the like."""
    alarms: Mapping[str, int]
    """The step of each alarm about the judge or the hand-written reward."""
    watched: bool
    """True if it was trained on a hand-written reward, which has an alarm of its own."""
    cost_usd: float | None
    """None = not known."""
    seconds: float
    steps: int = 0
    trained_steps: int = 0
    """Steps that changed the adapter."""
    damage: tuple[str, ...] = ()
    """Files of it that cannot be read, with the remedy."""

    @property
    def final(self) -> float | None:
        return self.success[max(self.success)] if self.success else None

    @property
    def hacking_gap(self) -> float | None:
        """By how much more the mean reward rose than success did, over the same training rollouts."""
        score, truth = change(self.rewarded), change(self.train_success)
        return None if score is None or truth is None else score - truth


@dataclass(frozen=True, slots=True)
class Arm:
    """All runs of one reward."""

    name: str
    cells: list[CellFigures]
    final: MeanOverSeeds
    steps_to: MeanOverSeeds
    """Mean over the seeds that reached the threshold; `seeds` says how many."""
    hacking_gap: MeanOverSeeds
    drift_hand: MeanOverSeeds
    """Change of tau between judge and hand from the first third of training to the last."""
    drift_truth: MeanOverSeeds
    tau_hand: MeanOverSeeds
    tau_truth: MeanOverSeeds
    measures: Mapping[str, MeanOverSeeds]
    """Measures of held-out attempts after the last step."""
    cost_usd: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `gavel compare`."""

    scenario: str
    arms: list[Arm]
    paired: Mapping[str, PairedDifference]
    """Final held-out success of two arms over the same seeds, by `judge - hand`."""
    before: Mapping[str, MeanOverSeeds]
    """The measures of held-out attempts before training, over all runs."""
    threshold: float
    margin: float
    directory: Path

    @property
    def damage(self) -> list[str]:
        """Files of the runs that cannot be read, with the remedy."""
        return [line for arm in self.arms for cell in arm.cells for line in cell.damage]


def read_cell(
    arm: str, seed: int, directory: Path, scenario: Scenario | None = None, *, last: int | None = None
) -> CellFigures:
    """The figures of a run, up to the step `last`. Raises `GavelError` where there is none."""
    read = read_run(directory)
    rows = [row for row in read.rows if last is None or row["step"] <= last]
    training = [row for row in rows if row["split"] == "train"]
    tasks = curve_of(rows, "held_out", "trajectories")
    scored, by_hand = (curve_of(rows, "train", name) for name in ("judge_score", HAND))
    return CellFigures(
        arm=arm,
        seed=seed,
        directory=directory,
        success=curve_of(rows, "held_out", "success"),
        heldout_tasks=round(tasks[max(tasks)]) if tasks else 0,
        judge_score=scored,
        rewarded={
            step: fmean(each[step] for each in (scored, by_hand) if step in each) for step in {*scored, *by_hand}
        },
        train_success=curve_of(rows, "train", "success"),
        agreement=agreement_over_training(directory, scenario),
        measures=measures_of(rows),
        alarms=alarms_of(rows),
        watched=bool(by_hand),
        cost_usd=cost_of(rows),
        seconds=seconds_of(rows).get("whole", 0.0),
        steps=len(training),
        trained_steps=sum(map(is_trained, training)),
        damage=read.damage,
    )


def compare_cells(
    cells: Sequence[CellFigures], scenario: str, directory: Path, *, margin: float, threshold: float
) -> Comparison:
    """The arms in the order of their first cells, and their paired differences."""
    by_arm: dict[str, list[CellFigures]] = {}
    for cell in cells:
        by_arm.setdefault(cell.arm, []).append(cell)
    paired: dict[str, PairedDifference] = {}
    for (one, ones), (other, others) in combinations(by_arm.items(), 2):
        finals = {cell.seed: cell.final for cell in others if cell.final is not None}
        differences = [
            cell.final - finals[cell.seed] for cell in ones if cell.final is not None and cell.seed in finals
        ]
        if differences:
            paired[f"{one} - {other}"] = paired_difference(differences, margin)
    return Comparison(
        scenario=scenario,
        arms=[_arm(name, of_arm, threshold) for name, of_arm in by_arm.items()],
        paired=paired,
        before=_measured(cells, min),
        threshold=threshold,
        margin=margin,
        directory=directory,
    )


def _arm(name: str, cells: list[CellFigures], threshold: float) -> Arm:
    def over(values: Sequence[float | None]) -> MeanOverSeeds:
        return mean_over_seeds([value for value in values if value is not None])

    hands, truths = [c.agreement.judge_hand for c in cells], [c.agreement.judge_truth for c in cells]
    costs = [cell.cost_usd for cell in cells if cell.cost_usd is not None]
    return Arm(
        name=name,
        cells=cells,
        final=over([cell.final for cell in cells]),
        steps_to=over([steps_to(cell.success, threshold) for cell in cells]),
        hacking_gap=over([cell.hacking_gap for cell in cells]),
        drift_hand=over([change(curve) for curve in hands]),
        drift_truth=over([change(curve) for curve in truths]),
        tau_hand=over([fmean(curve.values()) if curve else None for curve in hands]),
        tau_truth=over([fmean(curve.values()) if curve else None for curve in truths]),
        measures=_measured(cells, max),
        cost_usd=sum(costs) if len(costs) == len(cells) else None,
        seconds=sum(cell.seconds for cell in cells),
    )


def _measured(cells: Sequence[CellFigures], which: Callable[[Curve], int]) -> dict[str, MeanOverSeeds]:
    """The outcome at the first (`min`) or the last (`max`) evaluated step of each run."""
    names = dict.fromkeys(name for cell in cells for name in cell.measures)
    curves = {name: [cell.measures[name] for cell in cells if name in cell.measures] for name in names}
    return {name: mean_over_seeds([curve[which(curve)] for curve in each]) for name, each in curves.items()}


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def steps_text(arm: Arm) -> str:
    """`14`, or `14 (3 of 5 seeds)` where some never reached it."""
    if arm.steps_to.value is None:
        return "–"
    reached, seeds = arm.steps_to.seeds, len(arm.cells)
    return f"{arm.steps_to.value:.0f}" + ("" if reached == seeds else f" ({reached} of {seeds} seeds)")


def cost_text(arm: Arm) -> str:
    if not any(cell.judge_score for cell in arm.cells):
        return "–"
    return "not known" if arm.cost_usd is None else f"{arm.cost_usd:.2f}"


def alarms_text(arm: Arm) -> str:
    """`hacked: 2 of 3 runs, first at step 12`, for each alarm; `none`, or `–` where nothing was there to raise one."""
    steps: dict[str, list[int]] = {}
    for cell in arm.cells:
        for alarm, step in cell.alarms.items():
            steps.setdefault(alarm.replace("_", " "), []).append(step)
    told = [
        f"{name}: {len(at)} of {counted(len(arm.cells), 'run')}, first at step {min(at)}" for name, at in steps.items()
    ]
    watched = any(cell.judge_score or cell.watched for cell in arm.cells)
    return "; ".join(told) or ("none" if watched else "–")


def outcome(comparison: Comparison) -> list[str]:
    """The result in sentences: first rewards on which nothing was trained, then the difference of every two rewards."""
    idle = [
        arm
        for arm in comparison.arms
        if any(c.steps for c in arm.cells) and not any(c.trained_steps for c in arm.cells)
    ]
    said = [
        f"On {arm.name} nothing was trained ({counted(len(arm.cells), 'run')}): its figures are the base's."
        for arm in idle
    ]
    if len(idle) == len(comparison.arms):
        return [*said, "So this says nothing about the rewards: `gavel check` shows why no group tells attempts apart."]
    said += [statement(name, difference) for name, difference in comparison.paired.items()]
    return said or ["No two rewards have a held-out success to compare."]


def statement(name: str, difference: PairedDifference) -> str:
    """`judge - hand: -0.01 (95 %: -0.03 to +0.01, 5 seeds): equivalent within ±0.03`"""
    interval = seeds = counted(difference.seeds, "seed")
    if difference.low is not None and difference.high is not None:
        interval = f"95 %: {difference.low:+.2f} to {difference.high:+.2f}, {seeds}"
    return f"{name}: {difference.mean:+.2f} ({interval}): {difference.verdict}"


def as_json(comparison: Comparison) -> str:
    """All figures; the trajectories stay in the run directories."""

    def arm(one: Arm) -> dict[str, Any]:
        fields = ("final", "steps_to", "hacking_gap", "drift_hand", "drift_truth", "tau_hand", "tau_truth")
        return {
            "name": one.name,
            **{name: asdict(getattr(one, name)) for name in fields},
            "measures": {name: asdict(mean) for name, mean in one.measures.items()},
            "cost_usd": one.cost_usd,
            "seconds": round(one.seconds, 2),
            "runs": [
                {
                    "seed": cell.seed,
                    "directory": str(cell.directory),
                    "heldout_tasks": cell.heldout_tasks,
                    "heldout_success": cell.success,
                    "judge_score": cell.judge_score,
                    "rewarded": cell.rewarded,
                    "train_success": cell.train_success,
                    "tau_judge_hand": cell.agreement.judge_hand,
                    "tau_judge_truth": cell.agreement.judge_truth,
                    "measures": dict(cell.measures),
                    "alarms": dict(cell.alarms),
                    "cost_usd": cell.cost_usd,
                    "seconds": round(cell.seconds, 2),
                }
                for cell in one.cells
            ],
        }

    return json.dumps(
        {
            "scenario": comparison.scenario,
            "damage": comparison.damage,
            "threshold": comparison.threshold,
            "margin": comparison.margin,
            "before": {name: asdict(mean) for name, mean in comparison.before.items()},
            "arms": [arm(one) for one in comparison.arms],
            "paired": {name: asdict(one) | {"equivalent": one.equivalent} for name, one in comparison.paired.items()},
        },
        indent=1,
    )


def csv_rows(comparison: Comparison) -> list[list[str]]:
    """One row for each point of each learning curve, under a header."""
    header = ["reward", "seed", "step", "heldout_success", "run"]
    return [header] + [
        [arm.name, str(cell.seed), str(step), f"{value:.6g}", str(cell.directory)]
        for arm in comparison.arms
        for cell in arm.cells
        for step, value in sorted(cell.success.items())
    ]


def write_comparison(comparison: Comparison) -> Path:
    """Writes report.html, comparison.csv and comparison.json; returns the page. Raises `GavelError`."""
    page = render_comparison(comparison)
    return write_results(comparison.directory, "comparison", csv_rows(comparison), as_json(comparison), page)


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
    )


def _span(arms: Sequence[Arm]) -> tuple[float | None, float | None]:
    """0 to 1, or what the rewards need where a hand-written one goes beyond."""
    values = [value for arm in arms for cell in arm.cells for value in cell.rewarded.values()]
    return (0, 1) if all(0 <= value <= 1 for value in values) else (None, None)


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
