"""ART's directories of a model."""

from pathlib import Path

import pytest

import gavel.compat.art as art
from gavel.compat.art.utils.get_repo_root_path import get_repo_root_path
from gavel.compat.art.utils.output_dirs import (
    get_model_dir,
    get_models_dir,
    get_output_dir_from_model_properties,
    get_step_checkpoint_dir,
    get_trajectories_split_dir,
)


def test_directories_are_those_that_a_run_has() -> None:
    model = art.TrainableModel[None](name="a", project="p", base_model="b")
    assert get_models_dir("p") == ".art/p/models"
    assert Path(get_model_dir(model)) == model.output_dir
    directory = get_output_dir_from_model_properties("p", "a", "/runs")
    assert get_step_checkpoint_dir(directory, 7) == "/runs/p/models/a/checkpoints/0007"
    assert get_trajectories_split_dir(directory, "val") == "/runs/p/a/trajectories/val"


def test_the_root_is_the_nearest_repository_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    (tmp_path / ".git").mkdir()
    assert Path(get_repo_root_path()) == tmp_path
