"""The demo's report as one self-contained HTML page: figures, curves, and one task before and after training.

Text of agents, tools and judges is untrusted: the template escapes every value, contains no script, and its content
security policy allows none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gavel.base.text import duration
from gavel.reports import charts
from gavel.reports.page import render_page, write_page
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SummaryRow:
    label: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Success on held-out tasks after `step` training steps."""

    step: int
    success: float
    """Share of tasks, in [0, 1]."""
    half_width: float
    """Half the width of the 95 % interval."""
    tasks: int


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean judge score of training step `step`."""

    step: int
    reward: float


@dataclass(frozen=True, slots=True)
class TextSample:
    """A held-out topic's reply before and after training, each with its mean log-prob under the frozen base."""

    topic: str
    before: str
    after: str
    before_logprob: float
    after_logprob: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All that the page shows."""

    title: str
    explanation: str
    """What happened, in a paragraph."""
    caveat: str
    """Limits of the demo."""
    summary: Sequence[SummaryRow]
    curve: Sequence[CurvePoint]
    rewards: Sequence[RewardPoint]
    scored: Sequence[tuple[float, bool]]
    """(judge score in [0, 1], true success) of each judged trajectory."""
    tau: float | None
    """Mean within-group Kendall tau-b of judge score and true success; None where it is not defined."""
    before: Trajectory
    after: Trajectory
    """The same task as `before`; both have their `judgement`."""
    seconds: Mapping[str, float]
    """Time by phase."""
    left_out: Mapping[str, int]
    """Number of groups, and of single members, not trained on, by reason."""
    settings: Mapping[str, str]
    samples: Sequence[TextSample] = ()
    """Of a job whose replies are texts."""


def write_report(path: Path, report: DemoReport) -> None:
    """Writes the page atomically. Raises `GavelError` when it cannot be written."""
    write_page(path, render_report(report))


def render_report(report: DemoReport) -> str:
    """The page's HTML."""
    success = {
        p.step: charts.CurvePoint(p.success, max(0.0, p.success - p.half_width), min(1.0, p.success + p.half_width))
        for p in report.curve
    }
    rewards = {p.step: charts.CurvePoint(p.reward) for p in report.rewards}
    longest = max(report.seconds.values(), default=0) or 1
    return render_page(
        "demo_page.html.j2",
        report=report,
        tasks=_span([point.tasks for point in report.curve]),
        success_chart=charts.curves_chart({"success": success}, low=0, high=1),
        reward_chart=charts.curves_chart({"mean score": rewards}, low=0, high=1),
        outcome_chart=charts.outcome_histogram(report.scored),
        sides=[("Before", report.before), ("After", report.after)],
        times=[(name, duration(value), 100 * value / longest) for name, value in report.seconds.items()],
    )


def _span(numbers: Sequence[int]) -> str:
    """`512`, or `128 to 512`"""
    ends = sorted({min(numbers), max(numbers)}) if numbers else [0]
    return " to ".join(map(str, ends))
