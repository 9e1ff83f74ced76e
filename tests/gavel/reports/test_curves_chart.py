"""Curves in one chart lie inside the plot area, whatever their values."""

from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.charts import BOTTOM, LEFT, RIGHT, TOP
from gavel.reports.curves_chart import CurvePoint, curves_chart

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
