"""Which tracker a run has, and one sentence for one that is not installed."""

import importlib.util
from pathlib import Path

import pytest

from gavel.base.extras import install_line
from gavel.trainer.runs.run_directory import RunDirectory
from gavel.trainer.runs.trackers.tracker import Tracked, TrackerError, chosen_tracker, open_tracker


@pytest.mark.parametrize(
    ("named", "mode", "key", "expected"),
    [
        (None, "", "", "none"),
        (None, "offline", "", "wandb"),
        (None, "", "k", "wandb"),
        (None, "disabled", "k", "none"),
        ("none", "online", "k", "none"),
        ("wandb", "", "", "wandb"),
    ],
)
def test_a_named_tracker_wins_over_the_environment(monkeypatch, named, mode, key, expected):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert chosen_tracker(named) == expected


def test_without_a_tracker_there_is_nothing_to_open(tmp_path: Path):
    assert open_tracker("none", Tracked(tmp_path, "desk", "one")) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("trackio") is not None, reason="trackio is installed")
def test_one_that_is_not_installed_is_told_before_a_run_directory_is_made(tmp_path: Path):
    with pytest.raises(TrackerError, match="trackio is not installed") as error:
        RunDirectory(tmp_path, "desk", "one", "trackio")
    assert install_line("trackio") in error.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_made_anew_is_another_run(tmp_path: Path):
    run = Tracked(tmp_path, "desk", "one")
    assert run.mark("wandb", "a") == ("a", False)
    assert run.mark("wandb", "b") == ("a", True)
    (tmp_path / "wandb_id").unlink()
    assert run.mark("wandb", "c") == ("c", False)
