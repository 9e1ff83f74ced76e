"""The report of one run as a self-contained HTML page, also while the run goes on.

Trajectories, judges and file names are untrusted: the template escapes every value, contains no script, and its content
security policy allows none.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from gavel.base.text import counted, duration
from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.reports.charts import BINS, CurvePoint, curves_chart
from gavel.reports.page import render_page, write_page
from gavel.reports.run_figures import (
    JUDGED_SPLITS,
    Row,
    cost_of,
    left_out_of,
    read_run,
    run_charts,
    seconds_of,
    stored_groups,
    total_of,
)
from gavel.reports.run_outcome import outcome_of_run
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.loop.evolve import Iteration, iterations_of

REPORT = "report.html"
DEMO_RUN_REPORT = "run.html"
"""File name of a demo run's report; its report.html is the demo's own."""
_DEMO_MARK = "summary.json"
_PER_FILTER = 2
_LONGEST = 300
"""Characters of a reason or warning."""
_TRAINING = ("train", "explored")
"""Splits whose groups chose what was learned."""


@dataclass(slots=True)
class _Attempts:
    """Figures read from the stored training trajectories."""

    histogram: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By step, the number of scores in each tenth."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    """Groups by the status of their judgement."""
    unscored: Counter[str] = field(default_factory=Counter[str])
    """Unscored members by reason."""
    flags: Counter[str] = field(default_factory=Counter[str])
    warnings: Counter[str] = field(default_factory=Counter[str])
    """The judge's warnings about groups."""
    errors: list[float] = field(default_factory=list[float])
    truth: dict[int, list[list[tuple[float, float]]]] = field(
        default_factory=dict[int, list[list[tuple[float, float]]]]
    )
    samples: dict[str, list[tuple[str, Trajectory]]] = field(default_factory=dict[str, list[tuple[str, Trajectory]]])
    """(where it stands, member) by the name of the list that shows it."""


def write_run_report(directory: Path, path: Path | None = None) -> Path:
    """Writes the page, by default as report.html of the run (run.html of a demo's); returns its path. Raises
    `GavelError` for no run."""
    page = path or directory / (DEMO_RUN_REPORT if (directory / _DEMO_MARK).is_file() else REPORT)
    write_page(page, render_run(directory))
    return page


def render_run(directory: Path) -> str:
    """The page's HTML. Raises `GavelError` for a directory without a run."""
    read = read_run(directory)
    rows = read.rows
    attempts = _read_attempts(directory)
    charts = run_charts(rows)
    taus = {step: mean_kendall_tau(pairs) for step, pairs in attempts.truth.items()}
    points = {step: CurvePoint(tau) for step, tau in taus.items() if tau is not None}
    if (chart := curves_chart({"tau": points}, low=-1, high=1)) is not None:
        charts.append(("Judge and truth", "Kendall's tau within groups", chart))
    cost, seconds = cost_of(rows), seconds_of(rows)
    steps = max((row["step"] for row in rows if row["split"] != "times"), default=0)
    return render_page(
        "run_page.html.j2",
        name=f"{directory.parent.name}/{directory.name}",
        iterations=[_iteration_cells(each) for each in iterations_of(rows)],
        outcome=outcome_of_run(directory, rows, attempts.unscored),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        step=steps,
        damage=read.damage,
        charts=charts,
        bins=BINS,
        histogram=[
            (step, [(count, count / max(max(counts), 1)) for count in counts], sum(counts))
            for step, counts in sorted(attempts.histogram.items())
        ],
        left_out=[(count, sentence_of(key)) for key, count in left_out_of(rows).most_common()],
        health=_health(rows, attempts),
        cost="not known" if cost is None else f"{cost:.4f} USD",
        seconds=[(name, duration(value)) for name, value in seconds.items()],
        samples=attempts.samples,
    )


def _iteration_cells(iteration: Iteration) -> list[str]:
    reward, success = iteration.explored_reward, iteration.success
    return [
        str(iteration.number),
        f"{iteration.explored:,}",
        "–" if reward is None else f"{reward:.3f}",
        f"{iteration.kept:,}",
        f"{iteration.imitated:,}",
        str(iteration.last_step),
        "–" if success is None else f"{success:.3f}",
    ]


def _health(rows: Sequence[Row], attempts: _Attempts) -> list[tuple[str, str]]:
    """The judge's health figures as (label, value)."""
    found = [(f"groups {status}", f"{count:,}") for status, count in sorted(attempts.statuses.items())]
    if calls := _of_judging(rows, "judge/calls"):
        cached = _of_judging(rows, "judge/cached_calls")
        found.append(("calls", f"{calls:,.0f}, {cached:,.0f} of them replayed"))
        prompt, reply = (_of_judging(rows, f"judge/{kind}_tokens") for kind in ("prompt", "completion"))
        found.append(("tokens", f"{prompt:,.0f} of prompts, {reply:,.0f} of replies"))
        opposed = _of_judging(rows, "judge/opposed_groups")
        found.append(("groups whose orders contradict each other", f"{opposed:,.0f}"))
    if attempts.errors:
        found.append(("mean standard error of a score", f"{fmean(attempts.errors):.3f}"))
    found += [(f"warning: {warning}", counted(count, "group")) for warning, count in sorted(attempts.warnings.items())]
    found += [(f"flag: {flag}", f"{count:,}") for flag, count in sorted(attempts.flags.items())]
    found += [(f"unscored: {reason}", f"{count:,}") for reason, count in sorted(attempts.unscored.items())]
    return found


def _of_judging(rows: Sequence[Row], name: str) -> float:
    return sum(total_of(rows, split, name) for split in JUDGED_SPLITS)


def _read_attempts(directory: Path) -> _Attempts:
    found = _Attempts()
    for step, group in (each for split in _TRAINING for each in stored_groups(directory, split)):
        if group.judgement is not None:
            found.statuses[group.judgement.status] += 1
            found.warnings.update(warning[:_LONGEST] for warning in group.judgement.warnings)
        pairs: list[tuple[float, float]] = []
        for member in group:
            success = member.metrics.get("success")
            if (judgement := member.judgement) is not None:
                found.flags.update(map(str, judgement.flags))
                if judgement.score is None:
                    found.unscored[(judgement.reason or "not judged")[:_LONGEST]] += 1
                else:
                    counts = found.histogram.setdefault(step, [0] * BINS)
                    counts[min(max(int(judgement.score * BINS + 1e-9), 0), BINS - 1)] += 1
                    if judgement.standard_error is not None:
                        found.errors.append(judgement.standard_error)
                    if success is not None:
                        pairs.append((judgement.score, float(success)))
            for name in _filters(member, success):
                kept = found.samples.setdefault(name, [])
                kept.append((f"step {step}", member))
                del kept[:-_PER_FILTER]
        if pairs:
            found.truth.setdefault(step, []).append(pairs)
    return found


def _filters(member: Trajectory, success: float | bool | None) -> list[str]:
    """The lists of samples that a member is in; each keeps its newest."""
    judgement, reward = member.judgement, member.reward
    score = judgement.score if judgement else None
    lists = {
        "unscored": judgement is not None and score is None,
        "flagged": judgement is not None and bool(judgement.flags),
        member.status: member.status != "finished",
        "scored high, and failed": score is not None and score >= 0.7 and success is not None and not success,
        "scored low, and succeeded": score is not None and score <= 0.3 and bool(success),
        "rewarded": reward is not None and reward >= 0.5,
        "hardly rewarded": reward is not None and reward < 0.5,
    }
    return [name for name, is_in in lists.items() if is_in]
