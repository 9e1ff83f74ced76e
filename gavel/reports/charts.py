"""Geometry of the charts: values in, SVG coordinates out; `templates/chart.html.j2` draws the result.

A chart is two axes and its marks (stacked bars, or curves over training steps). Every mark lies inside the plot
area. The view box is narrow (420 units), so that text stays legible when a phone scales the chart down.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEFT, RIGHT, TOP, BOTTOM = 44, 408, 26, 200
"""Edges of the plot area within the view box; y grows downwards."""
BOX = {"width": 420, "height": 240, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
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


class BarSegment(NamedTuple):
    """One colour of a bar; its class in the style sheet is `kind`."""

    kind: str
    y: float
    height: float


class Bar(NamedTuple):
    """One bin of a histogram."""

    x: float
    width: float
    segments: list[BarSegment]
    """Bottom to top."""
    title: str
    label: str
    """Text above the bar."""


class CurvePoint(NamedTuple):
    """A value with its interval, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


class DrawnCurve(NamedTuple):
    name: str
    colour: int
    dots: list[tuple[float, float, str]]
    """x, y and title."""
    band: list[tuple[float, float]]
    """The outline of its interval."""


class Chart(NamedTuple):
    """A histogram, or curves."""

    x: Axis
    y: Axis
    bars: Sequence[Bar] = ()
    curves: Sequence[DrawnCurve] = ()


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """At most `most` round values (1, 2 or 5 times a power of ten apart) in [low, high]; only integers if `whole`."""
    power = 10.0 ** math.floor(math.log10(max(high - low, 1e-9) / most))
    for step in (power * factor for factor in (1, 2, 5, 10, 20, 50) if power * factor >= 1 or not whole):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [round(at * step, 10) for at in range(first, last + 1)]
    raise AssertionError("fifty times a power of ten are few enough")


def curves_chart(
    named: Mapping[str, Mapping[int, CurvePoint]], *, low: float | None = None, high: float | None = None
) -> Chart | None:
    """The curves that have points, on one pair of axes from `low` to `high`, or to what the values need; None without
    any point."""
    ends = [end for curve in named.values() for point in curve.values() for end in point if end is not None]
    if not ends:
        return None
    steps = [step for curve in named.values() for step in curve]
    bottom, top = min(ends) if low is None else low, max(ends) if high is None else high
    if top - bottom < 1e-9 * max(abs(top), abs(bottom), 1e-6):
        reach = abs(bottom) / 2 or 0.5
        bottom, top = bottom - (reach if low is None else 0), top + reach
    first, last = min(steps), max(max(steps), min(steps) + 1)
    x = Axis(first, last, LEFT, RIGHT, {value: f"{value:g}" for value in ticks(first, last, whole=True)})
    y = Axis(bottom, top, BOTTOM, TOP, {value: _short(value) for value in ticks(bottom, top, 5)})

    def place(step: int, value: float) -> tuple[float, float]:
        return x.position(step), y.position(min(max(value, bottom), top))

    drawn: list[DrawnCurve] = []
    for number, (name, curve) in enumerate(named.items()):
        points = sorted(curve.items())
        dots = [(*place(step, p.value), f"{name}, step {step}: {p.value:.4g}") for step, p in points]
        upper = [place(step, p.high) for step, p in points if p.high is not None]
        lower = [place(step, p.low) for step, p in points if p.low is not None]
        if points:
            drawn.append(DrawnCurve(name, number % COLOURS, dots, [*upper, *reversed(lower)]))
    return Chart(x, y, curves=drawn)


def score_histogram(scored: Sequence[tuple[float, bool | None]]) -> Chart:
    """Successes (below) and failures (above) in each tenth of the score, with the share of successes.

    An item: score in [0, 1], success. Without a success (None) it is counted alone; 1 itself is in the last tenth.
    """
    found = Counter((min(int(score * BINS + 1e-9), BINS - 1), succeeded) for score, succeeded in scored)
    counts = [(found[at, True] + found[at, None], found[at, False]) for at in range(BINS)]
    is_told = all(succeeded is not None for _, succeeded in scored)
    edges = [f"{edge / BINS:.1f}" for edge in range(BINS + 1)]
    tallest = max(map(sum, counts)) or 1
    x = Axis(0, BINS, LEFT, RIGHT, {edge: edges[edge] for edge in range(0, BINS + 1, 2)})
    labels = {value: f"{value:,g}" for value in ticks(0, tallest, 5, whole=True)}
    y = Axis(0, tallest, BOTTOM, TOP + _LABEL_HEIGHT, labels)
    bars: list[Bar] = []
    for at, (good, bad) in enumerate(counts):
        segments, top = list[BarSegment](), float(BOTTOM)
        for kind, count in (("good", good), ("bad", bad)):
            height = max(BOTTOM - y.position(count), _MIN_HEIGHT) if count else 0.0
            top -= height
            segments.append(BarSegment(kind, top, height))
        told = f"{good:,} succeeded, {bad:,} failed" if is_told else f"{good:,}"
        label = f"{good / (good + bad):.0%}" if is_told and good + bad else ""
        width = x.position(1) - x.position(0) - 2 * _GAP
        bars.append(Bar(x.position(at) + _GAP, width, segments, f"score {edges[at]} to {edges[at + 1]}: {told}", label))
    return Chart(x, y, bars)


def _short(value: float) -> str:
    """1.5e-06 → "1.5e-6": labels stay within the margin."""
    text = f"{value:.4g}"
    return f"{value:.2g}".replace("e-0", "e-") if len(text) > 6 else text
