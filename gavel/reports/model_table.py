"""Models compared on the same held-out tasks: what each reached, how often it beat the others by the judge, the pages.

    table["returns_desk"]["openai/gpt-5-mini"].success       one cell of several scenarios
    table.mean("openai/gpt-5-mini")                          over the scenarios, each counting the same

Figures are means over tasks. Failed episodes measure no model and are left out, and what the judge left unscored is
no loss; both are counted. A scenario that could not be evaluated is named with the reason, and is in no mean.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from gavel.base.text import duration
from gavel.reports.page import render_page, write_results
from gavel.reports.statistics import TaskMean, mean_of_scores, pass_at_k, share
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

_NO_FIGURES = frozenset({"success", "truncated", "reward", "independent_reward"})


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample of a task by one model."""

    task: str
    sample: int
    trajectories: list[Trajectory]
    """Trajectories of each agent that the model played, measured."""
    cost_usd: float | None
    """None = not known."""
    seconds: float


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
    pairs: Mapping[tuple[str, str], TaskMean]
    """Win rate of (first, second)."""
    directory: Path

    def __getitem__(self, name: str) -> ModelRow:
        return next(row for row in self.rows if row.name == name)


def model_row(name: str, episodes: Sequence[Episode], judged: Sequence[TrajectoryGroup], failed: int = 0) -> ModelRow:
    """The figures of a model; `judged` are groups of all models, whose members' metadata say whose they are."""
    trajectories = [each for episode in episodes for each in episode.trajectories]
    by_task: dict[str, list[float]] = {}
    for episode in episodes:
        if successes := [float(t.metrics["success"]) for t in episode.trajectories if "success" in t.metrics]:
            by_task.setdefault(episode.task, []).append(fmean(successes))
    most = max(map(len, by_task.values()), default=0)
    scores: list[float] = []
    unscored: Counter[str] = Counter()
    for group in judged:
        mine = [member for member in group if member.metadata.get("model") == name]
        known = [score for member in mine if (score := _score(member)) is not None]
        unscored.update((m.judgement and m.judgement.reason) or "not judged" for m in mine if _score(m) is None)
        scores += [fmean(known)] if known else []
    costs = [episode.cost_usd for episode in episodes]
    names = dict.fromkeys(name for each in trajectories for name in each.metrics if name not in _NO_FIGURES)
    return ModelRow(
        name=name,
        episodes=len(episodes),
        failed=failed,
        success=share([fmean(values) for values in by_task.values()], sum(map(len, by_task.values()))),
        pass_at={k: _pass_at(by_task, k) for k in range(1, most + 1)},
        score=mean_of_scores(scores),
        wins=win_rate(judged, name),
        unscored=dict(unscored.most_common()),
        truncated=fmean(each.status == "truncated" for each in trajectories) if trajectories else 0.0,
        measures={n: fmean(float(t.metrics[n]) for t in trajectories if n in t.metrics) for n in names},
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        seconds=sum(episode.seconds for episode in episodes),
    )


def pair_wins(judged: Sequence[TrajectoryGroup], models: Sequence[str]) -> dict[tuple[str, str], TaskMean]:
    """Win rates of (first, second) for every two models that a judge compared."""
    found = {pair: win_rate(judged, *pair) for pair in combinations(models, 2)}
    return {pair: estimate for pair, estimate in found.items() if estimate.tasks}


def win_rate(judged: Sequence[TrajectoryGroup], one: str, other: str | None = None) -> TaskMean:
    """The mean over groups of the mean over all pairs of an attempt of `one` and one of `other` (None: any other).

    Attempts that are all identical, about which no judge was asked, are tied.
    """
    values: list[float] = []
    pairs = 0
    for group in judged:
        is_tied = group.judgement is not None and group.judgement.status == "degenerate"
        scores = [0.5 if is_tied else _score(member) for member in group]
        known = [(m.metadata.get("model"), score) for m, score in zip(group, scores, strict=True) if score is not None]
        mine = [score for model, score in known if model == one]
        theirs = [score for model, score in known if model != one and other in (None, model)]
        won = [0.5 if score == rival else float(score > rival) for score in mine for rival in theirs]
        if won:
            values.append(fmean(won))
            pairs += len(won)
    return share(values, pairs)


def _pass_at(by_task: Mapping[str, Sequence[float]], k: int) -> TaskMean:
    enough = [values for values in by_task.values() if len(values) >= k]
    estimates = [pass_at_k(len(values), sum(value >= 1 for value in values), k) for values in enough]
    return share(estimates, sum(map(len, enough)))


def _score(member: Trajectory) -> float | None:
    return member.judgement.score if member.judgement else None


def ranking(named: Mapping[str, TaskMean], what: str) -> list[str]:
    """A sentence that names the best model: nobody, where the 95 % intervals of the best two overlap. Empty without
    figures."""
    known = sorted(((each.value, name) for name, each in named.items() if each.value is not None), reverse=True)
    if not known:
        return []
    told = "; ".join(f"{name} {named[name].text()}" for _, name in known)
    if len(known) == 1:
        return [f"{what}: {told}."]
    (_, best), (_, second) = known[:2]
    low, high = named[best].low, named[second].high
    if low is None or high is None or low <= high:
        return [f"{best} and {second} cannot be told apart by these tasks. {what}: {told}."]
    return [f"{best} did best. {what}: {told}."]


def outcome(table: ModelTable) -> list[str]:
    """The result in sentences."""
    said = ranking({row.name: row.success for row in table.rows}, "Held-out success") or ranking(
        {row.name: row.score for row in table.rows}, "The judge's score"
    )
    failed = [f"{row.name}: all {row.failed} episodes failed." for row in table.rows if row.failed and not row.episodes]
    return [*(said or ["Nothing was measured: no attempt has a success or a score."]), *failed]


def cost_text(usd: float | None) -> str:
    return "not known" if usd is None else f"{usd:.4f}" if 0 < usd < 0.01 else f"{usd:.2f}"


def as_json(table: ModelTable) -> str:
    """All figures; the trajectories stay in their files."""
    rows: list[dict[str, Any]] = [asdict(row) for row in table.rows]
    return json.dumps(
        {
            "scenario": table.scenario,
            "tasks": table.tasks,
            "samples": table.samples,
            "judges": table.judges,
            "judge_cost": table.judge_cost,
            "models": rows,
            "pairs": [{"model": one, "against": other, **asdict(each)} for (one, other), each in table.pairs.items()],
        },
        indent=1,
    )


_HEADER = ["model", "figure", "value", "low", "high", "tasks"]


def csv_rows(table: ModelTable) -> list[list[str]]:
    """One row for each figure of each model, under a header."""
    lines = [_HEADER]
    for row in table.rows:
        figures = {"success": row.success, "judge_score": row.score, "wins": row.wins}
        figures |= {f"pass@{k}": each for k, each in row.pass_at.items()}
        for name, each in figures.items():
            if each.value is not None:
                bounds = ["" if end is None else f"{end:.6g}" for end in (each.low, each.high)]
                lines.append([row.name, name, f"{each.value:.6g}", *bounds, str(each.tasks)])
        plain = {"truncated": row.truncated, **row.measures, "episodes": row.episodes, "failed": row.failed}
        plain |= {"unscored": sum(row.unscored.values()), "seconds": row.seconds}
        lines += [[row.name, name, f"{value:.6g}", "", "", ""] for name, value in plain.items()]
        lines.append([row.name, "cost_usd", "" if row.cost_usd is None else f"{row.cost_usd:.6g}", "", "", ""])
    return lines


def write_model_table(table: ModelTable) -> Path:
    """Writes report.html, evaluation.csv and evaluation.json; returns the page. Raises `GavelError`."""
    return write_results(table.directory, "evaluation", csv_rows(table), as_json(table), render_model_table(table))


def render_model_table(table: ModelTable) -> str:
    """The page's HTML."""
    ks = sorted({k for row in table.rows for k in row.pass_at if table.samples > 1})
    measures = list(dict.fromkeys(name for row in table.rows for name in row.measures))
    return render_page(
        "model_page.html.j2",
        table=table,
        outcome=outcome(table),
        ks=ks,
        rows=[
            (
                row,
                [row.pass_at[k].text() if k in row.pass_at else "–" for k in ks],
                cost_text(row.cost_usd),
                seconds_of(row),
            )
            for row in table.rows
        ],
        measures=measures,
        measured=[[f"{row.measures[n]:.3g}" if n in row.measures else "–" for n in measures] for row in table.rows],
        pairs=[(one, other, each.text(), each.tasks) for (one, other), each in table.pairs.items()],
        unscored=[(row.name, reason, count) for row in table.rows for reason, count in row.unscored.items()],
    )


_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class ScenarioTable:
    """Result of `gavel evaluate A B …`."""

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
    """The mean duration of an episode over these scenarios, as text."""
    known = [row for row in rows if row is not None and row.episodes]
    episodes = sum(row.episodes for row in known)
    return duration(sum(row.seconds for row in known) / episodes) if episodes else "–"


def by_judge(table: ModelTable) -> bool:
    """True if its figures are the judge's scores."""
    return not any(row.success.tasks for row in table.rows)


def write_scenario_table(table: ScenarioTable) -> Path:
    """Writes report.html, evaluation.csv and evaluation.json of all; returns the page. Raises `GavelError`."""
    lines = [["scenario", *_HEADER]]
    for each in table.tables:
        lines += ([each.scenario, *row] for row in csv_rows(each)[1:])
    scenarios = [json.loads(as_json(each)) for each in table.tables]
    means = [
        {"model": name, "success": asdict(table.mean(name)), "cost_usd": table.cost(name)} for name in table.models
    ]
    whole = {"scenarios": scenarios, "models": means, "failed": dict(table.failed)}
    return write_results(
        table.directory, "evaluation", lines, json.dumps(whole, indent=1), render_scenario_table(table)
    )


def render_scenario_table(table: ScenarioTable) -> str:
    """The page's HTML; it links to the page of each scenario."""
    models = table.models
    cells = [
        (
            each,
            by_judge(each),
            Path(os.path.relpath(each.directory / "report.html", table.directory)).as_posix(),
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
