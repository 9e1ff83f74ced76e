"""Numbers and times as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.http.pages.views import clock, duration, iso, number, score, usd


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.00 USD"),
        (0.00321, "0.0032 USD"),
        (0.0000012, "0.0000012 USD"),
        (0.0184, "0.018 USD"),
        (0.1, "0.10 USD"),
        (1234.5, "1,234.50 USD"),
    ],
)
def test_money(value: float | None, shown: str):
    assert usd(value) == shown


@given(st.floats(1e-11, 1e6))
def test_what_costs_something_is_not_shown_as_nothing(value: float):
    assert float(usd(value).removesuffix(" USD").replace(",", "")) == pytest.approx(value, rel=0.51)
    assert float(usd(value).removesuffix(" USD").replace(",", "")) > 0


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (-1.0, "0 ms"),
        (0.0037, "4 ms"),
        (0.9996, "1.0 s"),
        (2.54, "2.5 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (75.0, "1 min 15 s"),
        (3700.0, "1 h 1 min"),
        (90_000.0, "25 h 0 min"),
    ],
)
def test_durations(seconds: float | None, shown: str):
    assert duration(seconds) == shown


def test_scores_numbers_and_times():
    assert [score(0.8251), score(None), number(1234567), number(None)] == ["0.83", "–", "1,234,567", "–"]
    assert [clock(1_795_342_896.4), iso(1_795_342_896.4)] == ["2026-11-22 10:21:36", "2026-11-22T10:21:36Z"]
