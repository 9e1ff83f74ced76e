"""Several curves over training steps in one chart: values in, SVG coordinates out; `curves.html.j2` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gavel.reports.charts import BOTTOM, LEFT, RIGHT, TOP, Axis, ticks

COLOURS = 6
"""How many the style sheet has."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A value with its interval, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    name: str
    colour: int
    line: str
    """SVG points."""
    band: str
    dots: list[tuple[float, float, str]]
    """x, y and title."""


@dataclass(frozen=True, slots=True)
class CurvesChart:
    x: Axis
    y: Axis
    curves: list[DrawnCurve]


def curves_chart(
    named: Mapping[str, Mapping[int, CurvePoint]], *, low: float | None = None, high: float | None = None
) -> CurvesChart | None:
    """The curves that have points, on one pair of axes from `low` to `high`, or to what the values need; None without
    any point."""
    points = [point for curve in named.values() for point in curve.values()]
    if not points:
        return None
    steps = [step for curve in named.values() for step in curve]
    ends = [end for p in points for end in (p.value, p.low, p.high) if end is not None]
    bottom = min(ends) if low is None else low
    top = max(ends) if high is None else high
    if top - bottom < 1e-9 * max(abs(top), abs(bottom), 1e-6):
        reach = (abs(bottom) or 1.0) / 2
        bottom, top = bottom - (reach if low is None else 0), top + reach
    first, last = min(steps), max(max(steps), min(steps) + 1)
    x = Axis(first, last, LEFT, RIGHT, {value: f"{value:g}" for value in ticks(first, last, whole=True)})
    y = Axis(bottom, top, BOTTOM, TOP, {value: f"{value:g}" for value in ticks(bottom, top, 5)})
    drawn = [_drawn(name, number % COLOURS, curve, x, y) for number, (name, curve) in enumerate(named.items()) if curve]
    return CurvesChart(x, y, drawn)


def _drawn(name: str, colour: int, curve: Mapping[int, CurvePoint], x: Axis, y: Axis) -> DrawnCurve:
    points = sorted(curve.items())

    def clipped(value: float) -> float:
        return y.position(min(max(value, y.low), y.high))

    upper = [(x.position(step), clipped(p.high)) for step, p in points if p.high is not None]
    lower = [(x.position(step), clipped(p.low)) for step, p in points if p.low is not None]
    dots = [(x.position(step), clipped(p.value), f"{name}, step {step}: {p.value:.4g}") for step, p in points]
    return DrawnCurve(name, colour, _svg([(a, b) for a, b, _ in dots]), _svg([*upper, *reversed(lower)]), dots)


def _svg(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
