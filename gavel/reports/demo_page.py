"""The demo's report: one HTML file that needs nothing else, and cannot be made to run anything.

What agents, tools and judges wrote is hostile text. The template escapes every value, holds no script, and its
content policy allows none.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavel.llm.types import Message
from gavel.reports.charts import outcome_histogram, share_curve
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
    """Of the 95 % interval."""
    tasks: int


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean of the judge's scores in training step `step`."""

    step: int
    reward: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All that the report shows."""

    title: str
    explanation: str
    """What happened, in a paragraph."""
    caveat: str
    """What this is, and what it is not."""
    summary: Sequence[SummaryRow]
    curve: Sequence[CurvePoint]
    rewards: Sequence[RewardPoint]
    scored: Sequence[tuple[float, bool]]
    """For each judged trajectory: the judge's score in [0, 1], and whether it truly succeeded."""
    tau: float | None
    """Kendall's tau of judge and truth, where it is defined."""
    before: Trajectory
    after: Trajectory
    """On the same task as `before`; both with their `judgement`."""
    seconds: Mapping[str, float]
    """Where the time went, by name."""
    left_out: Mapping[str, int]
    """How many groups, and members of other groups, were not learned from, by reason."""
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as the report shows it."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    """Tool calls, as `name(argument=value)`."""


def write_report(path: Path, report: DemoReport) -> None:
    """Writes the report, whole or not at all."""
    write_page(path, render_report(report))


def render_report(report: DemoReport) -> str:
    """The report's HTML."""
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
    """The main conversation, turn by turn."""
    for message in trajectory.messages():
        calls = tuple(
            _call(call.get("function") or call.get("custom") or {}) for call in message.get("tool_calls") or ()
        )
        yield Turn(str(message.get("role", "")), _text(message), calls)


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
        arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in parsed.items())
    return f"{function.get('name', '')}({arguments})"


def _text(message: Message) -> str:
    match message.get("content") or message.get("refusal"):
        case None:
            return ""
        case str(text):
            return text
        case list(parts):
            return "\n".join(
                str(part.get("text") or f"[{part.get('type', 'part')}]") if isinstance(part, dict) else str(part)
                for part in parts
            )
        case other:
            return json.dumps(other, ensure_ascii=False, default=str)
