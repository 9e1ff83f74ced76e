"""The demo's report as one self-contained HTML page: figures, curves, and one task before and after training.

Text of agents, tools and judges is untrusted: the template escapes every value, contains no script, and its content
security policy allows none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gavel.base.text import duration
from gavel.reports.charts import CurvePoint, curves_chart, outcome_histogram
from gavel.reports.page import render_page, write_page
from gavel.reports.run_outcome import Outcome
from gavel.trainer.data.left_out import sentence_of


@dataclass(frozen=True, slots=True)
class SummaryRow:
    label: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All that the page shows."""

    title: str
    explanation: str
    """The demo's outcome in a paragraph."""
    caveat: str
    """Limits of the demo."""
    summary: Sequence[SummaryRow]
    outcome: Outcome
    """Its `before` and `after` have their `judgement`."""
    seconds: Mapping[str, float]
    """Time by phase."""
    settings: Mapping[str, str]


def write_report(path: Path, report: DemoReport) -> None:
    """Writes the page atomically. Raises `GavelError` when it cannot be written."""
    write_page(path, render_report(report))


def render_report(report: DemoReport) -> str:
    """The page's HTML."""
    outcome = report.outcome
    success = {
        p.step: CurvePoint(p.success, max(0.0, p.success - p.half_width), min(1.0, p.success + p.half_width))
        for p in outcome.curve
    }
    longest = max(report.seconds.values(), default=0) or 1
    return render_page(
        "demo_page.html.j2",
        report=report,
        tasks=" to ".join(map(str, sorted({outcome.base.tasks, outcome.trained.tasks}))),
        success_chart=curves_chart({"success": success}, low=0, high=1),
        reward_chart=curves_chart(
            {"mean score": {step: CurvePoint(reward) for step, reward in outcome.rewards.items()}}, low=0, high=1
        ),
        outcome_chart=outcome_histogram(outcome.scored),
        sides=[("Before", outcome.before), ("After", outcome.after)],
        times=[(name, duration(value), 100 * value / longest) for name, value in report.seconds.items()],
        left_out=[(sentence_of(reason), count) for reason, count in outcome.left_out.items()],
    )
