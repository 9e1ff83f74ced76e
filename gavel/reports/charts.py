"""The geometry of the report's charts: numbers in, places in an SVG view box out.

Pure; the template draws what is here. A view box is small (420 units wide), so that its text stays readable when a
phone shrinks it and does not grow beyond the page's own text beside others on a wide screen.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 408, 26, 200
"""Edges of the plot within the view box; y grows downwards."""

BINS = 10
_GAP = 3
_LEAST_HEIGHT = 1.5
"""So that a single trajectory among thousands is still seen."""


@dataclass(frozen=True, slots=True)
class Tick:
    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class LineChart:
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    dots: list[Dot]
    band: str
    """Corners of the interval's area, as SVG points; empty without one."""

    @property
    def line(self) -> str:
        """The dots as SVG points."""
        return _svg_points((dot.x, dot.y) for dot in self.dots)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin: how many succeeded, from the bottom, and how many failed, on top of them."""

    x: float
    width: float
    succeeded_y: float
    succeeded_height: float
    failed_y: float
    failed_height: float
    label: str
    """Share of the bin that succeeded; empty for an empty bin."""
    title: str


@dataclass(frozen=True, slots=True)
class BarChart:
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class Column:
    """One bin of a histogram."""

    x: float
    width: float
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Histogram:
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    columns: list[Column]


@dataclass(frozen=True, slots=True)
class PointChart:
    """Points around a zero line."""

    x_ticks: list[Tick]
    y_ticks: list[Tick]
    dots: list[Dot]
    zero: float
    """Height of the line at value 0."""


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """At most `most` round numbers (1, 2 or 5 times a power of ten apart) in [low, high]; only integers if `whole`."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / most))
    steps = [power * factor for factor in (1, 2, 5, 10, 20, 50)]
    step = next(s for s in steps if (s >= 1 or not whole) and _count(low, high, s) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 10) for i in range(_count(low, high, step))]


def _count(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def share_chart(points: Sequence[tuple[int, float, float | None, str]]) -> LineChart:
    """Values between 0 and 1 over steps. A point: step, value, half width of its interval or None, and its title."""
    last = max((step for step, *_ in points), default=0) or 1
    x, y = _scale(0, last, LEFT, RIGHT), _scale(0, 1, BOTTOM, TOP)
    known = [(step, value, half) for step, value, half, _ in points if half is not None]
    upper = [(x(step), y(min(1, value + half))) for step, value, half in known]
    lower = [(x(step), y(max(0, value - half))) for step, value, half in reversed(known)]
    return LineChart(
        x_ticks=[Tick(x(value), f"{value:g}") for value in ticks(0, last, whole=True)],
        y_ticks=[Tick(y(value), f"{value:.1f}") for value in ticks(0, 1)],
        dots=[Dot(x(step), y(value), title) for step, value, _, title in points],
        band=_svg_points([*upper, *lower]),
    )


def verdict_chart(verdicts: Sequence[tuple[float, bool]]) -> BarChart:
    """How many trajectories succeeded and failed in each tenth of the judge's scores; 1.0 is in the last tenth."""
    counts = [[0, 0] for _ in range(BINS)]
    for score, succeeded in verdicts:
        counts[min(int(score * BINS + 1e-9), BINS - 1)][succeeded] += 1
    tallest = max(map(sum, counts)) or 1
    x, y = _scale(0, BINS, LEFT, RIGHT), _scale(0, tallest, BOTTOM, TOP + 10)
    return BarChart(
        x_ticks=[Tick(x(place), f"{place / BINS:.1f}") for place in range(0, BINS + 1, 2)],
        y_ticks=[Tick(y(value), f"{value:,g}") for value in ticks(0, tallest, 5, whole=True)],
        bars=[_bar(number, failed, succeeded, x, y) for number, (failed, succeeded) in enumerate(counts)],
    )


def histogram(values: Sequence[float], high: float, decimals: int) -> Histogram:
    """How many values lie in each tenth of [0, high]; `high` itself is in the last. Titles have so many decimals."""
    counts = [0] * BINS
    for value in values:
        counts[min(int(value / high * BINS + 1e-9), BINS - 1)] += 1
    tallest = max(counts) or 1
    x, y = _scale(0, BINS, LEFT, RIGHT), _scale(0, tallest, BOTTOM, TOP + 10)
    columns = []
    for number, count in enumerate(counts):
        height = max(BOTTOM - y(count), _LEAST_HEIGHT) if count else 0.0
        start, end = (f"{high * edge / BINS:.{decimals}f}" for edge in (number, number + 1))
        title = f"{start} to {end}: {count:,}"
        columns.append(Column(x(number) + _GAP, x(1) - x(0) - 2 * _GAP, BOTTOM - height, height, title))
    return Histogram(
        x_ticks=[Tick(x(place), f"{high * place / BINS:.{decimals}f}") for place in range(0, BINS + 1, 2)],
        y_ticks=[Tick(y(value), f"{value:,g}") for value in ticks(0, tallest, 5, whole=True)],
        columns=columns,
    )


def place_chart(means: Sequence[float]) -> PointChart:
    """What each place of a prompt, first to last, has gained or lost."""
    reach = max(map(abs, means), default=0.0) or 1.0
    x, y = _scale(0.5, len(means) + 0.5, LEFT, RIGHT), _scale(-reach, reach, BOTTOM - 8, TOP + 8)
    return PointChart(
        x_ticks=[Tick(x(place), f"{place}") for place in range(1, len(means) + 1)],
        y_ticks=_signed_ticks(reach, y),
        dots=[Dot(x(place), y(mean), f"place {place}: {mean:+.3f}") for place, mean in enumerate(means, 1)],
        zero=y(0),
    )


def scatter_chart(points: Sequence[tuple[float, float]]) -> PointChart:
    """Points whose coordinates lie around 0."""
    across, up = (max((abs(point[side]) for point in points), default=0.0) or 1.0 for side in (0, 1))
    x, y = _scale(-across, across, LEFT + 6, RIGHT - 6), _scale(-up, up, BOTTOM - 8, TOP + 8)
    return PointChart(
        x_ticks=_signed_ticks(across, x),
        y_ticks=_signed_ticks(up, y),
        dots=[Dot(x(one), y(other), f"{one:+.2f}, {other:+.2f}") for one, other in points],
        zero=y(0),
    )


def _signed_ticks(reach: float, scale: Callable[[float], float]) -> list[Tick]:
    return [Tick(scale(value), f"{value:+g}" if value else "0") for value in ticks(-reach, reach, 5)]


def _bar(number: int, failed: int, succeeded: int, x: Callable[[float], float], y: Callable[[float], float]) -> Bar:
    def height(count: int) -> float:
        return max(BOTTOM - y(count), _LEAST_HEIGHT) if count else 0.0

    good, bad = height(succeeded), height(failed)
    total = failed + succeeded
    return Bar(
        x=x(number) + _GAP,
        width=x(1) - x(0) - 2 * _GAP,
        succeeded_y=BOTTOM - good,
        succeeded_height=good,
        failed_y=BOTTOM - good - bad,
        failed_height=bad,
        label=f"{succeeded / total:.0%}" if total else "",
        title=f"score {number / BINS:.1f} to {(number + 1) / BINS:.1f}: {succeeded:,} succeeded, {failed:,} failed",
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 2)


def _svg_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
