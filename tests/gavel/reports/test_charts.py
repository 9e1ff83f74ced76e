import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    CurvePoint,
    curves_chart,
    histogram,
    outcome_histogram,
    position_chart,
    scatter_chart,
    ticks,
)


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 45, True, [0, 10, 20, 30, 40]),
        (0, 3, True, [0, 1, 2, 3]),
        (0, 1, True, [0, 1]),
        (0, 12345, True, [0, 5000, 10000]),
    ],
)
def test_ticks_are_few_and_round(low: float, high: float, whole: bool, expected: list[float]):
    assert ticks(low, high, whole=whole) == expected


POINTS = st.builds(CurvePoint, st.floats(-1e6, 1e6))


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.integers(0, 500), POINTS), max_size=8))
def test_every_dot_is_inside(curves: dict[str, dict[int, CurvePoint]]) -> None:
    chart = curves_chart(curves)
    assert (chart is None) == (not any(curves.values()))
    for curve in chart.curves if chart else ():
        for x, y, _ in curve.dots:
            assert LEFT - 1e-6 <= x <= RIGHT + 1e-6
            assert TOP - 1e-6 <= y <= BOTTOM + 1e-6


def test_bands_are_clipped_to_the_axis() -> None:
    chart = curves_chart({"a": {0: CurvePoint(0.5, -3, 3), 1: CurvePoint(0.6, 0.5, 0.7)}}, low=0, high=1)
    assert chart is not None
    assert f"{LEFT},{TOP}" in chart.curves[0].band
    assert f"{LEFT},{BOTTOM}" in chart.curves[0].band


def test_each_tenth_of_the_scores_tells_how_many_succeeded():
    chart = outcome_histogram([(0.05, False), (0.3, False), (0.3, True), (1.0, True), (0.95, True), (0.9, False)])
    assert [bar.label for bar in chart.bars] == ["0%", "", "", "50%", "", "", "", "", "", "67%"]
    assert chart.bars[9].title == "score 0.9 to 1.0: 2 succeeded, 1 failed"
    succeeded, failed = chart.bars[9].segments
    assert (succeeded.kind, failed.kind) == ("good", "bad")
    assert chart.bars[9].top == failed.y < succeeded.y < BOTTOM
    assert failed.y + failed.height == pytest.approx(succeeded.y)
    assert succeeded.y + succeeded.height == pytest.approx(BOTTOM)


def test_nothing_to_draw_draws_nothing():
    assert scatter_chart([]).dots == position_chart([]).dots == []
    for chart in (outcome_histogram([]), histogram([], 1.0, 1)):
        assert all(segment.height == 0 for bar in chart.bars for segment in bar.segments)
