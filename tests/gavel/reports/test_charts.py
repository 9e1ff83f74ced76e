import pytest

from gavel.reports.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    histogram,
    place_chart,
    scatter_chart,
    share_chart,
    ticks,
    verdict_chart,
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


def test_a_curve_spans_the_plot_and_its_interval_stays_within():
    chart = share_chart([(0, 0.0, 0.1, "start"), (5, 0.5, 0.1, "middle"), (10, 1.0, 0.1, "end")])
    assert [(dot.x, dot.y) for dot in chart.dots] == [
        (LEFT, BOTTOM),
        ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2),
        (RIGHT, TOP),
    ]
    heights = [float(point.split(",")[1]) for point in chart.band.split()]
    assert min(heights) == TOP
    assert max(heights) == BOTTOM


def test_a_curve_without_intervals_has_no_band():
    assert share_chart([(1, 0.5, None, "")]).band == ""


def test_each_tenth_of_the_scores_tells_how_many_succeeded():
    chart = verdict_chart([(0.05, False), (0.3, False), (0.3, True), (1.0, True), (0.95, True), (0.9, False)])
    assert [bar.label for bar in chart.bars] == ["0%", "", "", "50%", "", "", "", "", "", "67%"]
    assert chart.bars[9].title == "score 0.9 to 1.0: 2 succeeded, 1 failed"
    highest = chart.bars[9]
    assert highest.failed_y < highest.succeeded_y < BOTTOM
    assert highest.failed_y + highest.failed_height == pytest.approx(highest.succeeded_y)
    assert highest.succeeded_y + highest.succeeded_height == pytest.approx(BOTTOM)


def test_one_among_thousands_is_still_drawn():
    chart = verdict_chart([(0.1, False), *[(1.0, True)] * 5000])
    assert chart.bars[1].failed_height > 1


def test_nothing_to_draw_draws_nothing():
    assert share_chart([]).dots == []
    assert all(bar.succeeded_height == bar.failed_height == 0 for bar in verdict_chart([]).bars)


def test_a_histogram_counts_every_value_once_and_the_last_bin_holds_its_end() -> None:
    chart = histogram([0.0, 0.05, 0.1, 0.3, 1.0, 0.95], 1.0, 1)
    assert [column.title.split(": ")[1] for column in chart.columns] == [
        "2",
        "1",
        "0",
        "1",
        "0",
        "0",
        "0",
        "0",
        "0",
        "2",
    ]
    assert chart.columns[2].height == 0
    assert all(column.y + column.height == pytest.approx(BOTTOM) for column in chart.columns)
    assert all(column.height == 0 for column in histogram([], 1.0, 1).columns)


def test_places_above_the_mean_are_drawn_above_the_line() -> None:
    chart = place_chart([0.2, 0.0, -0.2])
    assert [dot.y < chart.zero for dot in chart.dots] == [True, False, False]
    assert chart.dots[1].y == chart.zero
    assert all(TOP <= dot.y <= BOTTOM for dot in chart.dots)
    assert [tick.label for tick in chart.x_ticks] == ["1", "2", "3"]
    assert place_chart([0.0]).dots[0].y == place_chart([0.0]).zero


def test_better_members_are_drawn_up_and_to_the_right() -> None:
    chart = scatter_chart([(-0.1, -2.0), (0.0, 0.0), (0.1, 2.0)])
    assert [dot.x for dot in chart.dots] == sorted(dot.x for dot in chart.dots)
    assert [dot.y for dot in chart.dots] == sorted((dot.y for dot in chart.dots), reverse=True)
    assert scatter_chart([]).dots == []
