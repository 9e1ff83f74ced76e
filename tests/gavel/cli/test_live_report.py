"""The page that is written while a run goes on."""

import logging
from pathlib import Path

import pytest

from gavel.cli.training import LiveReport
from tests.gavel.reports.made_runs import made_run


def test_a_page_is_not_written_again_at_once(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    live = LiveReport(run)
    live.write_if_due()
    (run / "report.html").unlink()
    live.write_if_due()
    assert not (run / "report.html").exists()
    assert live.write() == run / "report.html"


def test_a_page_that_cannot_be_written_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert LiveReport(tmp_path).write() is None
    assert "was not written" in caplog.text
