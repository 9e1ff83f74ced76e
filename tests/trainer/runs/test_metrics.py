"""What is measured is on disk, one line a row, and at the tracker that the run has."""

import contextlib
import importlib
import importlib.util
import json
import math
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.base.extras import install_line
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.runs import trackers
from gavel.trainer.runs.metrics import MetricsError, MetricsLog, judge_totals, trajectory_means, whole_rows
from gavel.trainer.runs.run_directory import RunDirectory
from gavel.trainer.runs.trackers import COLUMNS, TrackerError, chosen_tracker, mark
from tests.limits import HANG_SECONDS
from tests.scenarios.formats.attempts import hostile, whole


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def open_log(path: Path, **options: Any) -> MetricsLog:
    return MetricsLog(path, project="desk", name="one", **options)


def test_rows_of_steps_that_are_done_again_are_forgotten_and_the_others_stay_as_they_are(path):
    log = open_log(path)
    log.drop_after(0)
    assert not path.exists()
    for step, split in [(1, "train"), (1, "val"), (2, "train"), (2, "times"), (3, "train")]:
        log.log(step, split, {"reward": step / 10, "loss": math.nan, "gap": -math.inf})
    lines = path.read_text().splitlines(keepends=True)
    log.drop_after(3)
    assert path.read_text() == "".join(lines)
    log.drop_after(1)
    assert path.read_text() == "".join(lines[:2])
    row = json.loads(lines[0], parse_constant=pytest.fail)  # a value that is not finite is null
    assert (row["loss"], row["gap"]) == (None, None)
    log.log(2, "train", {"reward": 0.5})
    assert [row["reward"] for row in open_log(path).rows("train")] == [0.1, 0.5]


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file of this process may grow beyond `room` bytes: what does not fit is written in part, then refused."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("fits", [0, 20])
def test_a_full_disk_leaves_no_part_of_a_row(path, fits):
    log = open_log(path)
    log.log(1, "train", {"reward": 0.5})
    before = path.read_bytes()
    with full_disk(len(before) + fits), pytest.raises(MetricsError, match="cannot be written"):
        log.log(2, "train", {"reward": 0.6})
    assert path.read_bytes() == before
    log.log(2, "train", {"reward": 0.6})
    assert [row["step"] for row in log.rows()] == [1, 2]


def test_means_are_over_the_trajectories_that_have_a_value():
    groups = [
        TrajectoryGroup([Trajectory(reward=1.0, metrics={"turns": 2}), ValueError("broken")]),
        TrajectoryGroup([Trajectory(reward=math.nan, metrics={"turns": 3})]),
        TrajectoryGroup([Trajectory(reward=None, metrics={"turns": 4}, status="failed"), Trajectory(reward=0.0)]),
    ]
    expected = {"reward": 0.5, "turns": 3.0, "failed": 0.25, "trajectories": 4.0, "exceptions": 1.0}
    assert trajectory_means(groups) == expected | {"left_out/reward_not_finite": 1.0}
    assert trajectory_means([]) == {"trajectories": 0.0, "exceptions": 0.0}
    shaped = Trajectory(reward=1.0, judgement=Judgement(score=0.7), metrics={"judge_score": 9})
    means = trajectory_means([TrajectoryGroup([shaped, Trajectory(judgement=Judgement(reason="no vote"))])])
    assert (means["reward"], means["judge_score"], means["metric/judge_score"]) == (1.0, 0.7, 9.0)


def test_judging_is_added_up_over_the_groups():
    def totals(*judgements: dict[str, Any]) -> dict[str, float]:
        told = (GroupJudgement(status="scored", **each) for each in judgements)
        return judge_totals([*(TrajectoryGroup(judgement=each) for each in told), TrajectoryGroup()])

    assert totals(*({"order_agreement": each} for each in (-1.0, 0.0, 0.4, None)))["judge/opposed_groups"] == 2
    one = {"calls": 2, "cached_calls": 1, "prompt_tokens": 20, "completion_tokens": 2, "cost_usd": 0.25}
    other = {"calls": 3, "cached_calls": 1, "prompt_tokens": 30, "completion_tokens": 3, "cost_usd": 0.5}
    expected = {"judge/calls": 5, "judge/cached_calls": 3, "judge/prompt_tokens": 50, "judge/completion_tokens": 5}
    assert totals(one, other, {"cached_calls": 1}) == expected | {"judge/cost_usd": 0.75}


@pytest.mark.slow
def test_an_offline_wandb_run_holds_every_row_the_groups_and_the_report(path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    log = open_log(path)
    log.log(1, "train", {"reward": 0.28125, "loss": math.nan, "note": "a note"})
    log.log(1, "val", {"reward": 0.53125})
    log.log(2, "train", {"reward": 0.78125})
    log.log_groups(1, "train", [TrajectoryGroup([whole(), hostile()])])
    path.with_name("report.html").write_text("<!doctype html><p>the report")
    log.close()
    (table,) = path.parent.glob("wandb/offline-run-*/files/media/table/train/groups_*.json")
    written = json.loads(table.read_text())
    assert written["columns"] == list(COLUMNS)
    assert [row[COLUMNS.index("status")] for row in written["data"]] == ["finished", "failed"]
    (page,) = path.parent.glob("wandb/offline-run-*/files/media/html/report_*.html")
    assert page.read_text() == "<!doctype html><p>the report"
    (file,) = path.parent.glob("wandb/offline-run-*/*.wandb")
    wanted = [b"train/reward", b"0.28125", b"a note", b"val/reward", b"0.53125", b"0.78125"]
    deadline = time.monotonic() + HANG_SECONDS
    while missing := [each for each in wanted if each not in file.read_bytes()]:
        assert time.monotonic() < deadline, missing  # W&B's own process writes the last block when it likes
        time.sleep(0.01)
    assert path.with_name("wandb_id").read_text() in file.name
    assert [row["step"] for row in log.rows()] == [1, 1, 2]


@pytest.mark.parametrize("line", ["[1, 2]", '{"split": "train", "step": "1"}', "{torn"])
def test_a_line_that_is_no_row_is_told_and_passed_over_by_readers_and_a_torn_end_is_cut_off(path, line):
    log = open_log(path)
    log.log(1, "train", {"reward": 0.5})
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f'{line}\n{{"step": 2, "split": "train"}}')
    log = open_log(path)
    log.log(3, "train", {"reward": 0.6})
    with pytest.raises(MetricsError, match=r"cannot be read \(line 2\)") as error:
        log.rows()
    assert "--fresh" in error.value.remedy
    read = whole_rows(path)
    assert [row["step"] for row in read.rows] == [1, 3]
    assert read.damage.startswith(f"1 row of {path} cannot be read (line 2)")


@pytest.mark.skipif(importlib.util.find_spec("trackio") is not None, reason="trackio is installed")
def test_one_that_is_not_installed_is_told_before_a_run_directory_is_made(tmp_path: Path):
    with pytest.raises(TrackerError, match="trackio is not installed") as error:
        RunDirectory(tmp_path, "desk", "one", "trackio")
    assert install_line("trackio") in error.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_named_tracker_wins_over_the_environment_and_a_directory_made_anew_is_another_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert (chosen_tracker("none"), chosen_tracker(None)) == ("none", "wandb")
    assert [mark(tmp_path, "wandb", fresh) for fresh in "ab"] == [("a", False), ("a", True)]
    (tmp_path / "wandb_id").unlink()
    assert mark(tmp_path, "wandb", "c") == ("c", False)


def test_hostile_texts_are_unicode_and_as_long_as_the_limit_and_groups_that_are_not_shown_are_told():
    groups = [TrajectoryGroup([hostile("x" * 10_000_000)], judgement=GroupJudgement(status="scored", cost_usd=0.5))]
    (row,) = trackers.rows(3, groups)
    found = dict(zip(COLUMNS, row, strict=True))
    json.dumps(found, allow_nan=False).encode()
    assert (found["reward"], found["judge_cost_usd"]) == (None, 0.5)
    assert len(found["text"]) < trackers.CHARACTERS + 100
    assert found["text"].endswith("characters more)")
    many = trackers.rows(3, [TrajectoryGroup([whole(), whole()])] * (trackers.GROUPS + 5))
    assert len(many) == 2 * trackers.GROUPS + 1
    assert many[-1][-1] == "5 more groups of this step are in the run directory"
    assert {len(each) for each in many} == {len(COLUMNS)}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """trackio's own reader, over a directory of this module: it is read once, when trackio is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        pytest.importorskip("trackio", reason="make test-exports installs trackio")
        yield importlib.import_module("trackio.sqlite_storage").SQLiteStorage


@pytest.mark.exports
def test_trackio_has_metrics_tables_and_the_report_and_a_restart_goes_on(storage: Any, tmp_path: Path, capsys):
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    with contextlib.closing(open_log(path, tracker="trackio")) as log:
        log.log(1, "train", {"reward": 0.25, "note": "n"})
        log.log_groups(1, "train", [TrajectoryGroup([whole(), hostile()])])
        path.with_name("report.html").write_text("<!doctype html><p>the report")
    with contextlib.closing(open_log(path, tracker="trackio")) as log:
        log.log(2, "train", {"reward": 0.5})
    rows = storage.get_logs("desk", "one")
    assert [row["train/reward"] for row in rows if "train/reward" in row] == [0.25, 0.5]
    (table,) = [row["train/groups"] for row in rows if "train/groups" in row]
    assert [row["status"] for row in table["_value"]] == ["finished", "failed"]
    assert any("report" in row for row in rows)
    assert capsys.readouterr().out == ""
    path.with_name("trackio_id").unlink()  # a run directory made anew is another run
    with contextlib.closing(open_log(path, tracker="trackio")) as log:
        log.log(1, "train", {"reward": 9})
    assert len({each["id"] for each in storage.get_run_records("desk") if each["name"] == "one"}) == 2
