"""Models compared on the same held-out tasks: what each reached, how often it beat the others by the judge, the pages.

Figures are means over tasks. Failed episodes measure no model and are left out, and what the judge left unscored is
no loss; both are counted. A scenario that could not be evaluated is named with the reason, and is in no mean.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from gavel.base.text import duration
from gavel.reports.page import render_page, write_results
from gavel.reports.statistics import TaskMean, mean_of_scores, pass_at_k, share
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.model_samples import COST, SECONDS, Sample

_NO_FIGURES = frozenset({"success", "truncated", "reward", "independent_reward"})


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model's figures."""

    name: str
    episodes: int
    failed: int
    """Episodes in which the model could not be reached, or the world failed."""
    success: TaskMean
    pass_at: Mapping[int, TaskMean]
    """By k, over the tasks with so many samples; empty without `success`."""
    score: TaskMean
    """The judge's, from 0 to 1, relative to the other attempts at the task."""
    wins: TaskMean
    """Share of comparisons with the other models' attempts that the judge's scores decide for it; a tie is half."""
    unscored: Mapping[str, int]
    """Attempts that the judge gave no score, by reason."""
    truncated: float
    measures: Mapping[str, float]
    cost_usd: float | None
    """Cost of sampling; None = not known, 0 on this machine."""
    seconds: float
    """Sum over episodes, which ran at once."""


@dataclass(frozen=True, slots=True)
class ModelTable:
    """Result of `gavel evaluate` for one scenario."""

    scenario: str
    rows: list[ModelRow]
    tasks: int
    samples: int
    """Samples of each task."""
    judges: list[str]
    """Empty where no judge was asked."""
    judge_cost: str
    directory: Path

    def __getitem__(self, name: str) -> ModelRow:
        return next(row for row in self.rows if row.name == name)

    @property
    def by_judge(self) -> bool:
        """True if its figures are the judge's scores."""
        return not any(row.success.tasks for row in self.rows)


def model_row(
    name: str, episodes: Mapping[Sample, TrajectoryGroup], judged: Sequence[TrajectoryGroup], failed: int = 0
) -> ModelRow:
    """The figures of a model from its measured episodes; `judged` are groups of all models, whose members' metadata say
    whose they are."""
    trajectories = [each for episode in episodes.values() for each in episode]
    by_task: dict[str, list[float]] = {}
    for (task, _), episode in episodes.items():
        if successes := [float(each.metrics["success"]) for each in episode if "success" in each.metrics]:
            by_task.setdefault(task, []).append(fmean(successes))
    scores: list[float] = []
    unscored: Counter[str] = Counter()
    for group in judged:
        mine = [(_score(member), member.judgement) for member in group if member.metadata.get("model") == name]
        unscored.update((judgement and judgement.reason) or "not judged" for score, judgement in mine if score is None)
        known = [score for score, _ in mine if score is not None]
        scores += [fmean(known)] if known else []
    costs = [float(episode.metrics[COST]) for episode in episodes.values() if COST in episode.metrics]
    names = dict.fromkeys(name for each in trajectories for name in each.metrics if name not in _NO_FIGURES)
    return ModelRow(
        name=name,
        episodes=len(episodes),
        failed=failed,
        success=share([fmean(values) for values in by_task.values()], sum(map(len, by_task.values()))),
        pass_at={k: _pass_at(by_task, k) for k in range(1, max(map(len, by_task.values()), default=0) + 1)},
        score=mean_of_scores(scores),
        wins=win_rate(judged, name),
        unscored=dict(unscored.most_common()),
        truncated=fmean(each.status == "truncated" for each in trajectories) if trajectories else 0.0,
        measures={n: fmean(float(t.metrics[n]) for t in trajectories if n in t.metrics) for n in names},
        cost_usd=sum(costs) if len(costs) == len(episodes) else None,
        seconds=sum(float(episode.metrics.get(SECONDS, 0)) for episode in episodes.values()),
    )


def _pass_at(by_task: Mapping[str, Sequence[float]], k: int) -> TaskMean:
    enough = [values for values in by_task.values() if len(values) >= k]
    estimates = [pass_at_k(len(values), sum(value >= 1 for value in values), k) for values in enough]
    return share(estimates, sum(map(len, enough)))


def _score(member: Trajectory) -> float | None:
    return member.judgement.score if member.judgement else None


def win_rate(judged: Sequence[TrajectoryGroup], model: str) -> TaskMean:
    """The mean over groups of the mean over all pairs of an attempt of `model` and one of another.

    Attempts that are all identical, about which no judge was asked, are tied.
    """
    values: list[float] = []
    pairs = 0
    for group in judged:
        is_tied = group.judgement is not None and group.judgement.status == "degenerate"
        scores = [(member.metadata.get("model"), 0.5 if is_tied else _score(member)) for member in group]
        mine = [score for name, score in scores if score is not None and name == model]
        theirs = [score for name, score in scores if score is not None and name != model]
        if won := [0.5 if score == rival else float(score > rival) for score in mine for rival in theirs]:
            values.append(fmean(won))
            pairs += len(won)
    return share(values, pairs)


def ranking(named: Mapping[str, TaskMean], what: str) -> list[str]:
    """A sentence that names the best model: nobody, where the 95 % intervals of the best two overlap. Empty without
    figures."""
    known = sorted(((each.value, name) for name, each in named.items() if each.value is not None), reverse=True)
    if not known:
        return []
    told = f"{what}: {'; '.join(f'{name} {named[name].text()}' for _, name in known)}."
    if len(known) == 1:
        return [told]
    (_, best), (_, second) = known[:2]
    low, high = named[best].low, named[second].high
    if low is None or high is None or low <= high:
        return [f"{best} and {second} cannot be told apart by these tasks. {told}"]
    return [f"{best} did best. {told}"]


def outcome(table: ModelTable) -> list[str]:
    """The result in sentences."""
    said = ranking({row.name: row.success for row in table.rows}, "Held-out success") or ranking(
        {row.name: row.score for row in table.rows}, "The judge's score"
    )
    failed = [f"{row.name}: all {row.failed} episodes failed." for row in table.rows if row.failed and not row.episodes]
    return [*(said or ["Nothing was measured: no attempt has a success or a score."]), *failed]


def cost_text(usd: float | None) -> str:
    return "not known" if usd is None else f"{usd:.4f}" if 0 < usd < 0.01 else f"{usd:.2f}"


def seconds_of(*rows: ModelRow | None) -> str:
    """The mean duration of an episode over these scenarios, as text."""
    known = [row for row in rows if row is not None]
    episodes = sum(row.episodes for row in known)
    return duration(sum(row.seconds for row in known) / episodes) if episodes else "–"


def as_json(table: ModelTable) -> dict[str, Any]:
    """All figures; the trajectories stay in their files."""
    plain = {name: getattr(table, name) for name in ("scenario", "tasks", "samples", "judges", "judge_cost")}
    return plain | {"models": [asdict(row) for row in table.rows]}


def write_model_table(table: ModelTable) -> Path:
    """Writes report.html and evaluation.json; returns the page. Raises `GavelError`."""
    page = render_page(
        "model_page.html.j2",
        table=table,
        outcome=outcome(table),
        ks=sorted({k for row in table.rows for k in row.pass_at if table.samples > 1}),
        measures=list(dict.fromkeys(name for row in table.rows for name in row.measures)),
        cost_text=cost_text,
        seconds_of=seconds_of,
    )
    return write_results(table.directory, "evaluation", as_json(table), page)


@dataclass(frozen=True, slots=True)
class ScenarioTable:
    """Result of `gavel evaluate A B …`."""

    tables: list[ModelTable]
    """One for each scenario that was evaluated, in the order in which they were named."""
    directory: Path
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why a scenario could not be evaluated, by the name that it was asked for by."""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.name for table in self.tables for row in table.rows))

    @property
    def has_means(self) -> bool:
        """True if several scenarios know success."""
        return sum(not table.by_judge for table in self.tables) > 1

    def rows(self, model: str) -> list[ModelRow | None]:
        """The model's figures on each scenario."""
        return [next((row for row in table.rows if row.name == model), None) for table in self.tables]

    def mean(self, model: str) -> TaskMean:
        """Success over the scenarios that know it, each with the same weight; the interval is that of their own errors
        (normal approximation, from the widths of their 95 % intervals)."""
        known = [row.success for row in self.rows(model) if row is not None and row.success.value is not None]
        if not known or len(known) < sum(not table.by_judge for table in self.tables):
            return TaskMean(None, None, None, 0)
        value, tasks = fmean(each.value or 0.0 for each in known), sum(each.tasks for each in known)
        widths = [each.high - each.low for each in known if each.low is not None and each.high is not None]
        if len(widths) < len(known):
            return TaskMean(value, None, None, tasks)
        half = math.hypot(*widths) / 2 / len(widths)
        return TaskMean(value, max(0.0, value - half), min(1.0, value + half), tasks)

    def cost(self, model: str) -> float | None:
        """US dollars of sampling; None where a scenario's are not known."""
        costs = [row.cost_usd for row in self.rows(model) if row is not None]
        known = [cost for cost in costs if cost is not None]
        return math.fsum(known) if len(known) == len(costs) else None


def figure(row: ModelRow | None) -> TaskMean:
    """Success, or the judge's score where success is not known."""
    if row is None:
        return TaskMean(None, None, None, 0)
    return row.success if row.success.tasks else row.score


def write_scenario_table(table: ScenarioTable) -> Path:
    """Writes report.html and evaluation.json of all; returns the page, which links to those of the scenarios. Raises
    `GavelError`."""
    means = {name: table.mean(name) for name in table.models}
    stored = [{"model": name, "success": asdict(mean), "cost_usd": table.cost(name)} for name, mean in means.items()]
    whole = {"scenarios": [as_json(each) for each in table.tables], "models": stored, "failed": dict(table.failed)}
    figures = zip(*(map(figure, table.rows(name)) for name in table.models), strict=True)
    links = [Path(os.path.relpath(each.directory / "report.html", table.directory)) for each in table.tables]
    said = [f"{each.scenario}: {line}" for each in table.tables for line in outcome(each)]
    if table.has_means:
        said = ranking(means, "Mean held-out success")
    if table.failed:
        named = len(table.tables) + len(table.failed)
        said.append(f"{len(table.failed)} of {named} scenarios could not be evaluated: see below.")
    page = render_page(
        "scenario_page.html.j2",
        table=table,
        outcome=said,
        cells=list(zip(table.tables, map(Path.as_posix, links), figures, strict=True)),
        cost_text=cost_text,
        seconds_of=seconds_of,
    )
    return write_results(table.directory, "evaluation", whole, page)
