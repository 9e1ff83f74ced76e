"""The demo's report as one self-contained HTML page: figures, curves, and one task before and after training.

Text of agents, tools and judges is untrusted: the template escapes every value, contains no script, and its content
security policy allows none.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gavel.reports.charts import outcome_histogram, share_curve
from gavel.reports.message_text import shown_text
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


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as the page shows it."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    """Tool calls, as `name(argument=value)`."""


def write_report(path: Path, report: DemoReport) -> None:
    """Writes the page atomically. Raises `GavelError` when it cannot be written."""
    write_page(path, render_report(report))


def render_report(report: DemoReport) -> str:
    """The page's HTML."""
    curve = [
        (p.step, p.success, p.half_width, f"step {p.step}: {p.success:.2f} ± {p.half_width:.2f}") for p in report.curve
    ]
    rewards = [(p.step, p.reward, None, f"step {p.step}: {p.reward:.2f}") for p in report.rewards]
    longest = max(report.seconds.values(), default=0) or 1
    return render_page(
        "demo_page.html.j2",
        report=report,
        tasks=_span([point.tasks for point in report.curve]),
        success_chart=share_curve(curve),
        reward_chart=share_curve(rewards),
        outcome_chart=outcome_histogram(report.scored),
        sides=[("Before", report.before), ("After", report.after)],
        turns=turns,
        times=[(name, duration(value), 100 * value / longest) for name, value in report.seconds.items()],
    )


def turns(trajectory: Trajectory) -> Iterator[Turn]:
    """The messages of the main conversation."""
    for message in trajectory.messages():
        calls = tuple(
            _call(call.get("function") or call.get("custom") or {}) for call in message.get("tool_calls") or ()
        )
        yield Turn(str(message.get("role", "")), shown_text(message.get("content") or message.get("refusal")), calls)


def duration(seconds: float) -> str:
    """`84 s`, `3 min 20 s`"""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _span(numbers: Sequence[int]) -> str:
    """`512`, or `128 to 512`"""
    ends = sorted({min(numbers), max(numbers)}) if numbers else [0]
    return " to ".join(map(str, ends))


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments", function.get("input", ""))
    try:
        parsed = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        named = cast("dict[str, Any]", parsed)
        arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in named.items())
    return f"{function.get('name', '')}({arguments})"
