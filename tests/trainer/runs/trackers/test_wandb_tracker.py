"""A run at W&B, offline: the tables of groups and the report lie in the run directory, as W&B writes them."""

import json
from pathlib import Path

import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.runs.metrics import MetricsLog
from gavel.trainer.runs.trackers.group_table import COLUMNS
from tests.scenarios.formats.attempts import hostile, whole


@pytest.mark.slow
def test_groups_are_a_table_and_the_report_is_a_page(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    log = MetricsLog(tmp_path / "metrics.jsonl", project="desk", name="one", tracker="wandb")
    log.log(1, "train", {"reward": 0.25})
    log.log_groups(1, "train", [TrajectoryGroup([whole(), hostile()])])
    (tmp_path / "report.html").write_text("<!doctype html><p>the report")
    log.close()
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/train/groups_*.json")
    written = json.loads(table.read_text())
    assert written["columns"] == list(COLUMNS)
    assert [row[COLUMNS.index("status")] for row in written["data"]] == ["finished", "failed"]
    assert written["data"][0][COLUMNS.index("reward")] == 0.75
    (page,) = tmp_path.glob("wandb/offline-run-*/files/media/html/report_*.html")
    assert page.read_text() == "<!doctype html><p>the report"
