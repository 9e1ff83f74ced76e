"""The report of one run as a self-contained HTML page, also while the run goes on.

Trajectories, judges and file names are untrusted: the template escapes every value, contains no script, and its content
security policy allows none.
"""

import time
from collections import Counter
from pathlib import Path

from gavel.judge.audit.agreement import mean_kendall_tau
from gavel.reports.charts import BINS, CurvePoint, curves_chart, score_histogram
from gavel.reports.page import render_page, write_file
from gavel.reports.run_figures import (
    cost_of,
    left_out_of,
    read_run,
    run_charts,
    seconds_of,
    stored_groups,
    total_of_judging,
)
from gavel.reports.run_outcome import before_and_after, outcome_of_run
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.loop.evolve import iterations_of
from gavel.trainer.runs.checkpoints import read_object

REPORT = "report.html"
_PER_FILTER = 2
_LONGEST = 300
"""Characters of a reason or warning."""
_JUDGING = ("calls", "cached_calls", "prompt_tokens", "completion_tokens", "opposed_groups")
_TRAINING = ("train", "explored")
"""Splits whose groups chose what was learned."""


def write_run_report(directory: Path, path: Path | None = None) -> Path:
    """Writes the page, by default as report.html of the run; returns its path. Raises `GavelError` for no run."""
    page = path or directory / REPORT
    write_file(page, render_run(directory))
    return page


def render_run(directory: Path) -> str:
    """The page's HTML. Raises `GavelError` for a directory without a run."""
    read = read_run(directory)
    rows, attempts = read.rows, _Attempts(directory)
    charts = run_charts(rows)
    taus = {step: mean_kendall_tau(pairs) for step, pairs in attempts.truth.items()}
    points = {step: CurvePoint(tau) for step, tau in taus.items() if tau is not None}
    if (chart := curves_chart({"tau": points}, low=-1, high=1)) is not None:
        charts.append(("Judge and truth", "Kendall's tau within groups", chart))
    groups = [pairs for of_step in attempts.truth.values() for pairs in of_step]
    return render_page(
        "run_page.html.j2",
        name=f"{directory.parent.name}/{directory.name}",
        iterations=iterations_of(rows),
        outcome=outcome_of_run(directory, rows, attempts.unscored),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        step=max((row["step"] for row in rows if row["split"] != "times"), default=0),
        damage=read.damage,
        about=read_object(directory / "summary.json").get("about", ()),
        charts=charts,
        outcomes=score_histogram([(score, bool(success)) for pairs in groups for score, success in pairs]),
        tau=mean_kendall_tau(groups),
        pair=before_and_after(directory),
        bins=BINS,
        left_out=[(count, sentence_of(key)) for key, count in left_out_of(rows).most_common()],
        attempts=attempts,
        judging={name: total_of_judging(rows, f"judge/{name}") for name in _JUDGING},
        cost=cost_of(rows),
        seconds=seconds_of(rows),
    )


class _Attempts:
    """Figures read from the stored training trajectories."""

    def __init__(self, directory: Path) -> None:
        self.histogram: dict[int, list[int]] = {}
        """By step, the number of scores in each tenth."""
        self.statuses, self.unscored, self.flags, self.warnings = (Counter[str]() for _ in range(4))
        """Groups by the status of their judgement; unscored members by reason; flags; the judge's warnings."""
        self.errors: list[float] = []
        self.truth: dict[int, list[list[tuple[float, float]]]] = {}
        """By step, (score, success) of each group's members."""
        self.samples: dict[str, list[tuple[str, Trajectory]]] = {}
        """(where it stands, member) by the name of the list that shows it, which keeps the newest."""
        for step, group in (each for split in _TRAINING for each in stored_groups(directory, split)):
            if group.judgement is not None:
                self.statuses[group.judgement.status] += 1
                self.warnings.update(warning[:_LONGEST] for warning in group.judgement.warnings)
            pairs = [pair for member in group if (pair := self._add(step, member))]
            self.truth.setdefault(step, []).append(pairs)

    def _add(self, step: int, member: Trajectory) -> tuple[float, float] | None:
        """Counts a member; gives its score and success where both are known."""
        success, judgement = member.metrics.get("success"), member.judgement
        for name in _filters(member, success):
            kept = self.samples.setdefault(name, [])
            kept.append((f"step {step}", member))
            del kept[:-_PER_FILTER]
        if judgement is None:
            return None
        self.flags.update(map(str, judgement.flags))
        if judgement.score is None:
            self.unscored[(judgement.reason or "not judged")[:_LONGEST]] += 1
            return None
        counts = self.histogram.setdefault(step, [0] * BINS)
        counts[min(max(int(judgement.score * BINS + 1e-9), 0), BINS - 1)] += 1
        self.errors += [judgement.standard_error] if judgement.standard_error is not None else []
        return None if success is None else (judgement.score, float(success))


def _filters(member: Trajectory, success: float | bool | None) -> list[str]:
    """The lists of samples that a member is in."""
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
