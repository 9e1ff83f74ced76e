"""The clock of retention: setting the system's clock ahead deletes nothing."""

import logging
import time

import pytest

from gavel.judge.service.engine.steady_clock import SteadyClock

DAY = 86_400.0


def test_it_is_the_system_s_time_as_long_as_that_runs_as_it_should():
    before = time.time()
    assert before - 1 <= SteadyClock().now() <= time.time() + 1


@pytest.mark.parametrize("days", [0.5, 30, 3650])
def test_a_clock_that_is_set_ahead_is_not_followed_and_that_is_told(
    days: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    clock, now = SteadyClock(), time.time()
    monkeypatch.setattr(time, "time", lambda: now + days * DAY)
    with caplog.at_level(logging.WARNING):
        assert clock.now() < now + 60
    assert "set ahead" in caplog.text


def test_a_clock_that_is_set_back_is_followed(monkeypatch: pytest.MonkeyPatch):
    clock, now = SteadyClock(), time.time()
    monkeypatch.setattr(time, "time", lambda: now - DAY)
    assert clock.now() == now - DAY
