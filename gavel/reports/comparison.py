"""Runs compared by what they were trained on: one arm for each reward, one run for each seed.

Figures of held-out success are over the seeds; judge - hand is paired by seed. Read from the run directories alone.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from gavel.base.text import counted
from gavel.judge.audit.agreement import Pairs, mean_kendall_tau
from gavel.judge.audit.bootstrap import mean_over_groups
from gavel.reports.charts import Chart, CurvePoint, curves_chart
from gavel.reports.page import render_page, write_file, write_results
from gavel.reports.run_figures import Curve, Row, cost_of, curve_of, is_trained, read_run, seconds_of, stored_groups
from gavel.reports.statistics import MeanOverSeeds, PairedDifference, mean_over_seeds, paired_difference
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.evaluation import call_measure
from gavel.trainer.loop.judge_alarms import HAND

_NO_MEASURES = {"success", "reward", "failed", "trajectories", "exceptions", "step", "split", "time"}
_TAU = "Kendall's tau within groups of training rollouts"


@dataclass(frozen=True, slots=True)
class CellFigures:
    """One run: one arm and seed."""

    arm: str
    seed: int
    directory: Path
    heldout_success: Curve
    """By step."""
    judge_score: Curve
    """Mean of the training rollouts; empty where no judge scored."""
    rewarded: Curve
    """Mean of what the training rollouts were rewarded for, other than success: the judge's score, the hand-written
    reward, or of both half of each."""
    train_success: Curve
    tau_judge_hand: Curve
    """Kendall's tau of judge and hand-written reward within groups; empty where no judge scored."""
    tau_judge_truth: Curve
    measures: Mapping[str, Curve]
    """Measures of held-out attempts by step: the scenario's own, turns and the like."""
    alarms: Mapping[str, int]
    """The step of each alarm about the judge or the hand-written reward."""
    cost_usd: float | None
    """None = not known."""
    seconds: float
    trained: bool | None
    """Whether a step changed the adapter; None before the first step."""
    damage: tuple[str, ...]
    """Files of it that cannot be read, with the remedy."""

    @property
    def final(self) -> float | None:
        return self.heldout_success[max(self.heldout_success)] if self.heldout_success else None

    @property
    def hacking_gap(self) -> float | None:
        """By how much more the mean reward rose than success did, over the same training rollouts."""
        score, truth = _change(self.rewarded), _change(self.train_success)
        return None if score is None or truth is None else score - truth


@dataclass(frozen=True, slots=True)
class Arm:
    """All runs of one reward."""

    name: str
    figures: Mapping[str, MeanOverSeeds]
    """Means over the seeds that have the figure, by the names of `_FIGURES`; `steps_to` is the first evaluated step at
    or above the threshold."""
    measures: Mapping[str, MeanOverSeeds]
    """Measures of held-out attempts after the last step."""
    cost_usd: float | None
    seconds: float
    runs: list[CellFigures]

    @property
    def steps_text(self) -> str:
        """`14`, or `14 (3 of 5 seeds)` where some never reached it."""
        to, seeds = self.figures["steps_to"], len(self.runs)
        some = "" if to.seeds == seeds else f" ({to.seeds} of {seeds} seeds)"
        return "–" if to.value is None else f"{to.value:.0f}{some}"

    @property
    def cost_text(self) -> str:
        judged = any(run.judge_score for run in self.runs)
        return "–" if not judged else "not known" if self.cost_usd is None else f"{self.cost_usd:.2f}"

    @property
    def alarms_text(self) -> str:
        """`hacked: 2 of 3 runs, first at step 12`, for each alarm; `none`, or `–` where nothing could raise one."""
        names, runs = dict.fromkeys(name for run in self.runs for name in run.alarms), counted(len(self.runs), "run")
        steps = {name: [run.alarms[name] for run in self.runs if name in run.alarms] for name in names}
        told = [f"{name.replace('_', ' ')}: {len(at)} of {runs}, first at step {min(at)}" for name, at in steps.items()]
        return "; ".join(told) or ("none" if any(run.rewarded for run in self.runs) else "–")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `gavel compare`."""

    scenario: str
    threshold: float
    margin: float
    before: Mapping[str, MeanOverSeeds]
    """The measures of held-out attempts before training, over all runs."""
    arms: list[Arm]
    paired: Mapping[str, PairedDifference]
    """Final held-out success of two arms over the same seeds, by `judge - hand`."""
    directory: Path

    @property
    def damage(self) -> list[str]:
        """Files of the runs that cannot be read, with the remedy."""
        return [line for arm in self.arms for run in arm.runs for line in run.damage]

    @property
    def measured(self) -> list[tuple[str, list[str]]]:
        """The text of each measure before training, and of each arm after it."""
        named = [("before training", self.before), *((arm.name, arm.measures) for arm in self.arms)]
        return [(label, [of[each].text() if each in of else "–" for each in self.before]) for label, of in named]


def read_cell(
    arm: str, seed: int, directory: Path, scenario: Scenario | None = None, *, last: int | None = None
) -> CellFigures:
    """The figures of a run, up to the step `last`. Raises `GavelError` where there is none."""
    read = read_run(directory)
    rows = [row for row in read.rows if last is None or row["step"] <= last]
    training = [row for row in rows if row["split"] == "train"]
    scored, by_hand = (curve_of(rows, "train", name) for name in ("judge_score", HAND))
    rewards = {step: [each[step] for each in (scored, by_hand) if step in each] for step in {*scored, *by_hand}}
    hand, truth = _taus(directory, lambda member: _hand_reward(scenario, member), lambda m: m.metrics.get("success"))
    return CellFigures(
        arm=arm,
        seed=seed,
        directory=directory,
        heldout_success=curve_of(rows, "held_out", "success"),
        judge_score=scored,
        rewarded={step: fmean(values) for step, values in rewards.items()},
        train_success=curve_of(rows, "train", "success"),
        tau_judge_hand=hand,
        tau_judge_truth=truth,
        measures=_measures(rows),
        alarms={row["alarm"]: row["step"] for row in rows if row["split"] == "alarms" and "alarm" in row},
        cost_usd=cost_of(rows),
        seconds=round(seconds_of(rows).get("whole", 0.0), 2),
        trained=any(map(is_trained, training)) if training else None,
        damage=read.damage,
    )


def _measures(rows: Sequence[Row]) -> dict[str, Curve]:
    """Figures of held-out attempts by step, all but success and counts."""
    names = dict.fromkeys(name for row in rows if row["split"] == "held_out" for name in row)
    wanted = [name for name in names if name not in _NO_MEASURES and not name.startswith("judge/")]
    return {name: curve for name in wanted if (curve := curve_of(rows, "held_out", name))}


def _taus(directory: Path, *references: Callable[[Trajectory], float | None]) -> list[Curve]:
    """Kendall's tau of the judge's score and each reference, within the groups of training, by step."""
    pairs: list[dict[int, list[Pairs]]] = [{} for _ in references]
    for step, group in stored_groups(directory, "train"):
        scored = [(each.judgement.score, each) for each in group if each.judgement and each.judgement.score is not None]
        for by_step, reference in zip(pairs, references, strict=True):
            known = [(score, reference(member)) for score, member in scored]
            by_step.setdefault(step, []).append([(score, float(v)) for score, v in known if v is not None])
    taus = [{step: mean_kendall_tau(groups) for step, groups in by_step.items()} for by_step in pairs]
    return [{step: tau for step, tau in by_step.items() if tau is not None} for by_step in taus]


def _hand_reward(scenario: Scenario | None, trajectory: Trajectory) -> float | None:
    """The stored hand-written reward, else as the scenario computes it from the trajectory; None if neither is
    possible."""
    if HAND in trajectory.metrics:
        return trajectory.metrics[HAND]
    if scenario is None or scenario.hand_reward is None or trajectory.status == "failed":
        return None
    try:
        return call_measure(scenario, "hand_reward", scenario.hand_reward, trajectory)
    except ScenarioError:  # it needs the world of the episode, which is over
        return None


def compare_cells(
    cells: Sequence[CellFigures], scenario: str, directory: Path, *, margin: float, threshold: float
) -> Comparison:
    """The arms in the order of their first cells, and their paired differences."""
    by_arm: dict[str, dict[int, CellFigures]] = {}
    for cell in cells:
        by_arm.setdefault(cell.arm, {})[cell.seed] = cell
    finals = {arm: {seed: cell.final for seed, cell in of.items()} for arm, of in by_arm.items()}
    paired: dict[str, PairedDifference] = {}
    for (one, ones), (other, others) in combinations(finals.items(), 2):
        both = [(value, others.get(seed)) for seed, value in ones.items()]
        if differences := [a - b for a, b in both if a is not None and b is not None]:
            paired[f"{one} - {other}"] = paired_difference(differences, margin)
    return Comparison(
        scenario=scenario,
        threshold=threshold,
        margin=margin,
        before=_measured(cells, min),
        arms=[_arm(name, list(of_arm.values()), threshold) for name, of_arm in by_arm.items()],
        paired=paired,
        directory=directory,
    )


def _arm(name: str, runs: list[CellFigures], threshold: float) -> Arm:
    def first_at_threshold(run: CellFigures) -> float | None:
        return min((step for step, value in run.heldout_success.items() if value >= threshold), default=None)

    costs = [run.cost_usd for run in runs if run.cost_usd is not None]
    return Arm(
        name=name,
        figures={
            figure: mean_over_seeds([value for run in runs if (value := read(run)) is not None])
            for figure, read in {**_FIGURES, "steps_to": first_at_threshold}.items()
        },
        measures=_measured(runs, max),
        cost_usd=sum(costs) if len(costs) == len(runs) else None,
        seconds=round(sum(run.seconds for run in runs), 2),
        runs=runs,
    )


def _mean(curve: Curve) -> float | None:
    return fmean(curve.values()) if curve else None


def _change(curve: Curve) -> float | None:
    """The mean of the last third of the points less that of the first third; None with fewer than two points."""
    values = [value for _, value in sorted(curve.items())]
    third = max(len(values) // 3, 1)
    return fmean(values[-third:]) - fmean(values[:third]) if len(values) > 1 else None


_FIGURES: dict[str, Callable[[CellFigures], float | None]] = {
    "final": lambda run: run.final,
    "hacking_gap": lambda run: run.hacking_gap,
    "drift_hand": lambda run: _change(run.tau_judge_hand),
    "drift_truth": lambda run: _change(run.tau_judge_truth),
    "tau_hand": lambda run: _mean(run.tau_judge_hand),
    "tau_truth": lambda run: _mean(run.tau_judge_truth),
}
"""Drift: the change of tau from the first third of training to the last."""


def _measured(cells: Sequence[CellFigures], which: Callable[[Curve], int]) -> dict[str, MeanOverSeeds]:
    """The outcome at the first (`min`) or the last (`max`) evaluated step of each run."""
    names = dict.fromkeys(name for cell in cells for name in cell.measures)
    curves = {name: [cell.measures[name] for cell in cells if name in cell.measures] for name in names}
    return {name: mean_over_seeds([curve[which(curve)] for curve in each]) for name, each in curves.items()}


def outcome(comparison: Comparison) -> list[str]:
    """The result in sentences: first rewards on which nothing was trained, then the difference of every two rewards."""
    idle = [arm for arm in comparison.arms if {run.trained for run in arm.runs} - {None} == {False}]
    said = [
        f"On {arm.name} nothing was trained ({counted(len(arm.runs), 'run')}): its figures are the base's."
        for arm in idle
    ]
    if len(idle) == len(comparison.arms):
        return [*said, "So this says nothing about the rewards: `gavel check` shows why no group tells attempts apart."]
    said += [statement(name, difference) for name, difference in comparison.paired.items()]
    return said or ["No two rewards have a held-out success to compare."]


def statement(name: str, difference: PairedDifference) -> str:
    """`judge - hand: -0.01 (95 %: -0.03 to +0.01, 5 seeds): equivalent within ±0.03`"""
    interval = counted(difference.seeds, "seed")
    if difference.low is not None and difference.high is not None:
        interval = f"95 %: {difference.low:+.2f} to {difference.high:+.2f}, {interval}"
    return f"{name}: {difference.mean:+.2f} ({interval}): {difference.verdict}"


def write_comparison(comparison: Comparison) -> Path:
    """Writes report.html, comparison.csv (a row for each point of each learning curve) and comparison.json (all
    figures); returns the page. Raises `GavelError`."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["reward", "seed", "step", "heldout_success", "run"])
    for run in (run for arm in comparison.arms for run in arm.runs):
        for step, value in sorted(run.heldout_success.items()):
            rows.writerow([run.arm, run.seed, step, f"{value:.6g}", run.directory])
    write_file(comparison.directory / "comparison.csv", table.getvalue())
    page = render_page(
        "compare_page.html.j2", comparison=comparison, charts=_charts(comparison.arms), statements=outcome(comparison)
    )
    return write_results(comparison.directory, "comparison", asdict(comparison), page)


def _charts(arms: Sequence[Arm]) -> list[tuple[str, str, Chart]]:
    """Title, label and curves of each chart that has any."""

    def curves(figure: str, more: str = "") -> dict[str, dict[int, CurvePoint]]:
        return {f"{arm.name}{more}": _over_seeds([getattr(run, figure) for run in arm.runs]) for arm in arms}

    share = "share of tasks, mean and 95 % bootstrap band over seeds"
    means = "means of the training rollouts; of a sum, the mean of its parts"
    rewards = curves("rewarded", ": reward")
    both = zip(rewards.items(), curves("train_success", ": success").items(), strict=True)
    beside = dict(each for pair in both if pair[0][1] for each in pair)
    values = [value for arm in arms for run in arm.runs for value in run.rewarded.values()]
    ends = (0, 1) if all(0 <= value <= 1 for value in values) else (None, None)  # a hand-written one may go beyond
    wanted = (
        ("Held-out success", share, curves("heldout_success"), (0, 1)),
        ("Judge and hand", _TAU, curves("tau_judge_hand"), (-1, 1)),
        ("Judge and truth", _TAU, curves("tau_judge_truth"), (-1, 1)),
        ("Reward and success", means, beside, ends),
    )
    drawn = [(title, unit, curves_chart(named, low=low, high=high)) for title, unit, named, (low, high) in wanted]
    return [(title, unit, chart) for title, unit, chart in drawn if chart is not None]


def _over_seeds(curves: Sequence[Curve]) -> dict[int, CurvePoint]:
    """The mean at every step that all seeds with a curve have, with a percentile bootstrap interval over seeds."""
    known = [curve for curve in curves if curve]
    steps = sorted(set(known[0]).intersection(*known)) if known else []
    means = {step: mean_over_groups([curve[step] for curve in known]) for step in steps}
    return {step: CurvePoint(mean.value, mean.low, mean.high) for step, mean in means.items() if mean.value is not None}
