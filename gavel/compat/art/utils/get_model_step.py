"""The newest checkpoint of a model, read from ART's directory."""

from pathlib import Path
from typing import Any

from gavel.compat.art.art_directory import newest_step
from gavel.compat.art.model import TrainableModel


def get_step_from_dir(output_dir: str) -> int:
    """The highest step that has a checkpoint under `output_dir`; 0 when there is none."""
    return newest_step(Path(output_dir, "checkpoints"))


def get_model_step(model: TrainableModel[Any], art_path: str) -> int:
    """The newest checkpoint of `model` under `art_path`."""
    return get_step_from_dir(str(Path(art_path, model.project, "models", model.name)))
