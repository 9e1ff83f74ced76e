"""Geometry of the charts: values in, SVG coordinates out; `templates/chart.html.j2` draws the result.

A chart is two axes and its marks (stacked bars, or curves over training steps). Every mark lies inside the plot
area. The view box is narrow (420 units), so that text stays legible when a phone scales the chart down.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 408, 26, 200
"""Edges of the plot area within the view box; y grows downwards."""
BOX = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
"""The chart's geometry, for the templates."""

BINS = 10
_GAP = 3
_LABEL_HEIGHT = 10
"""Space above the tallest bar for its label."""
_MIN_HEIGHT = 1.5
"""Keeps a bar of one trajectory among thousands visible."""

COLOURS = 6
"""Number of curve colours in the style sheet."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Linear map of [low, high] onto the coordinates [start, end], with the text of each tick by its value."""

    low: float
    high: float
    start: float
    end: float
    labels: Mapping[float, str]

    def position(self, value: float) -> float:
        """The value's SVG coordinate."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """(coordinate, text) of each tick."""
        return [(self.position(value), text) for value, text in self.labels.items()]


@dataclass(frozen=True, slots=True)
class BarSegment:
    """One colour of a bar; its class in the style sheet is `kind`."""

    kind: Literal["good", "bad"]
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin of a histogram."""

    x: float
    width: float
    segments: list[BarSegment]
    """Bottom to top."""
    title: str
    label: str = ""
    """Text above the bar."""

    @property
    def top(self) -> float:
        return self.segments[-1].y


@dataclass(frozen=True, slots=True)
class Histogram:
    x: Axis
    y: Axis
    bars: Sequence[Bar]


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


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """At most `most` round values (1, 2 or 5 times a power of ten apart) in [low, high]; only integers if `whole`."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / most))
    steps = [power * factor for factor in (1, 2, 5, 10, 20, 50)]
    step = next(s for s in steps if (s >= 1 or not whole) and _count(low, high, s) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 10) for i in range(_count(low, high, step))]


def _count(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


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
        reach = abs(bottom) / 2 or 0.5
        bottom, top = bottom - (reach if low is None else 0), top + reach
    first, last = min(steps), max(max(steps), min(steps) + 1)
    x = Axis(first, last, LEFT, RIGHT, {value: f"{value:g}" for value in ticks(first, last, whole=True)})
    y = Axis(bottom, top, BOTTOM, TOP, {value: _short(value) for value in ticks(bottom, top, 5)})
    drawn = [_drawn(name, number % COLOURS, curve, x, y) for number, (name, curve) in enumerate(named.items()) if curve]
    return CurvesChart(x, y, drawn)


def histogram(values: Sequence[float], high: float, decimals: int) -> Histogram:
    """Count of values in each tenth of [0, high]; `high` itself is in the last. Bin edges have `decimals` decimals."""
    found = Counter(_bin(value / high) for value in values)
    x, y = _bin_axes(high, decimals, max(found.values(), default=0))
    edges = [f"{high * edge / BINS:.{decimals}f}" for edge in range(BINS + 1)]
    titles = [f"{edges[number]} to {edges[number + 1]}: {found[number]:,}" for number in range(BINS)]
    return Histogram(x, y, [_bar(x, y, number, {"good": found[number]}, titles[number]) for number in range(BINS)])


def outcome_histogram(scored: Sequence[tuple[float, bool]]) -> Histogram:
    """Successes (below) and failures (above) in each tenth of the score; an item: score in [0, 1], success."""
    counts = Counter((_bin(score), succeeded) for score, succeeded in scored)
    x, y = _bin_axes(1.0, 1, max(counts[number, True] + counts[number, False] for number in range(BINS)))
    bars: list[Bar] = []
    for number in range(BINS):
        succeeded, failed = counts[number, True], counts[number, False]
        span = f"{number / BINS:.1f} to {(number + 1) / BINS:.1f}"
        title = f"score {span}: {succeeded:,} succeeded, {failed:,} failed"
        label = f"{succeeded / (succeeded + failed):.0%}" if succeeded or failed else ""
        bars.append(_bar(x, y, number, {"good": succeeded, "bad": failed}, title, label))
    return Histogram(x, y, bars)


def _bin(share: float) -> int:
    return min(int(share * BINS + 1e-9), BINS - 1)


def _bin_axes(high: float, decimals: int, tallest: int) -> tuple[Axis, Axis]:
    """x counts bins of [0, high], y counts values up to the tallest bin's."""
    tallest = tallest or 1
    edges: dict[float, str] = {edge: f"{high * edge / BINS:.{decimals}f}" for edge in range(0, BINS + 1, 2)}
    counts = {value: f"{value:,g}" for value in ticks(0, tallest, 5, whole=True)}
    return Axis(0, BINS, LEFT, RIGHT, edges), Axis(0, tallest, BOTTOM, TOP + _LABEL_HEIGHT, counts)


def _bar(
    x: Axis, y: Axis, number: int, counts: Mapping[Literal["good", "bad"], int], title: str, label: str = ""
) -> Bar:
    segments: list[BarSegment] = []
    top: float = BOTTOM
    for kind, count in counts.items():
        height = max(BOTTOM - y.position(count), _MIN_HEIGHT) if count else 0.0
        top -= height
        segments.append(BarSegment(kind, top, height))
    width = x.position(1) - x.position(0) - 2 * _GAP
    return Bar(x.position(number) + _GAP, width, segments, title, label)


def _drawn(name: str, colour: int, curve: Mapping[int, CurvePoint], x: Axis, y: Axis) -> DrawnCurve:
    points = sorted(curve.items())

    def clipped(value: float) -> float:
        return y.position(min(max(value, y.low), y.high))

    upper = [(x.position(step), clipped(p.high)) for step, p in points if p.high is not None]
    lower = [(x.position(step), clipped(p.low)) for step, p in points if p.low is not None]
    dots = [(x.position(step), clipped(p.value), f"{name}, step {step}: {p.value:.4g}") for step, p in points]
    line, band = _svg_points([(a, b) for a, b, _ in dots]), _svg_points([*upper, *reversed(lower)])
    return DrawnCurve(name, colour, line, band, dots)


def _short(value: float) -> str:
    """1.5e-06 → "1.5e-6": labels stay within the margin."""
    text = f"{value:.4g}"
    return f"{value:.2g}".replace("e-0", "e-") if len(text) > 6 else text


def _svg_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
