import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Axis,
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


def test_an_axis_maps_its_ends_onto_its_coordinates_and_its_ticks_between():
    axis = Axis(-1, 3, BOTTOM, TOP, {-1: "low", 1: "middle", 3: "high"})
    assert axis.ticks == [(BOTTOM, "low"), ((TOP + BOTTOM) / 2, "middle"), (TOP, "high")]


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


def test_one_among_thousands_is_still_drawn():
    chart = outcome_histogram([(0.1, False), *[(1.0, True)] * 5000])
    assert chart.bars[1].segments[1].height > 1


def test_nothing_to_draw_draws_nothing():
    assert scatter_chart([]).dots == position_chart([]).dots == []
    for chart in (outcome_histogram([]), histogram([], 1.0, 1)):
        assert all(segment.height == 0 for bar in chart.bars for segment in bar.segments)


def test_a_histogram_counts_every_value_once_and_the_last_bin_holds_its_end() -> None:
    chart = histogram([0.0, 0.05, 0.1, 0.3, 1.0, 0.95], 1.0, 1)
    assert [int(bar.title.split(": ")[1]) for bar in chart.bars] == [2, 1, 0, 1, 0, 0, 0, 0, 0, 2]
    assert chart.bars[2].segments[0].height == 0
    assert all(bar.top + bar.segments[0].height == pytest.approx(BOTTOM) for bar in chart.bars)


def test_positions_above_the_mean_are_drawn_above_the_line() -> None:
    chart = position_chart([0.2, 0.0, -0.2])
    assert [dot.y < chart.y.position(0) for dot in chart.dots] == [True, False, False]
    assert chart.dots[1].y == chart.y.position(0)
    assert all(TOP <= dot.y <= BOTTOM for dot in chart.dots)
    assert [label for _, label in chart.x.ticks] == ["1", "2", "3"]
    assert position_chart([0.0]).dots[0].y == position_chart([0.0]).y.position(0)


def test_better_members_are_drawn_up_and_to_the_right() -> None:
    chart = scatter_chart([(-0.1, -2.0), (0.0, 0.0), (0.1, 2.0)])
    assert [dot.x for dot in chart.dots] == sorted(dot.x for dot in chart.dots)
    assert [dot.y for dot in chart.dots] == sorted((dot.y for dot in chart.dots), reverse=True)
