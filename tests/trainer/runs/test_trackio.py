"""A run at trackio, on this machine: metrics, tables and report, as it reads them (make test-exports)."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.runs.metrics import MetricsLog
from tests.scenarios.formats.attempts import hostile, whole

pytestmark = pytest.mark.exports
PROJECT = "desk"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """trackio's own reader, over a directory of this module: it is read once, when trackio is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        pytest.importorskip("trackio", reason="make test-exports installs trackio")
        yield importlib.import_module("trackio.sqlite_storage").SQLiteStorage


def opened(folder: Path, name: str) -> MetricsLog:
    folder.mkdir(exist_ok=True)
    return MetricsLog(folder / "metrics.jsonl", project=PROJECT, name=name, tracker="trackio")


def test_metrics_tables_and_the_report_are_read_back(storage: Any, tmp_path: Path, capsys):
    log = opened(tmp_path / "run", "one")
    log.log(1, "train", {"reward": 0.25, "note": "n"})
    log.log_groups(1, "train", [TrajectoryGroup([whole(), hostile()])])
    log.log(2, "train", {"reward": 0.5})
    (tmp_path / "run" / "report.html").write_text("<!doctype html><p>the report")
    log.close()
    rows = storage.get_logs(PROJECT, "one")
    assert [row["train/reward"] for row in rows if "train/reward" in row] == [0.25, 0.5]
    (table,) = [row["train/groups"] for row in rows if "train/groups" in row]
    assert [row["status"] for row in table["_value"]] == ["finished", "failed"]
    assert any("report" in row for row in rows)
    assert capsys.readouterr().out == ""


def test_two_runs_of_one_process_are_tracked_beside_each_other(storage: Any, tmp_path: Path):
    logs = [opened(tmp_path / name, name) for name in ("left", "right")]
    for step in (1, 2):
        for log in logs:
            log.log(step, "train", {"reward": step})
    for log in logs:
        log.close()
    for name in ("left", "right"):
        assert [row["train/reward"] for row in storage.get_logs(PROJECT, name)] == [1, 2]


def test_a_restart_goes_on_and_a_run_directory_made_anew_is_another_run(storage: Any, tmp_path: Path):
    for step in (1, 2):
        log = opened(tmp_path / "run", "two")
        log.log(step, "train", {"reward": step})
        log.close()
    assert [row["train/reward"] for row in storage.get_logs(PROJECT, "two")] == [1, 2]
    shutil.rmtree(tmp_path / "run")
    log = opened(tmp_path / "run", "two")
    log.log(1, "train", {"reward": 9})
    log.close()
    records = [each for each in storage.get_run_records(PROJECT) if each["name"] == "two"]
    assert len({each["id"] for each in records}) == 2
