"""The newest checkpoint of a model, read from ART's directory."""

from pathlib import Path
from typing import Any

from gavel.compat.art.model import TrainableModel


def get_step_from_dir(output_dir: str) -> int:
    """The highest step that has a checkpoint under `output_dir`; 0 when there is none."""
    checkpoints = Path(output_dir, "checkpoints")
    if not checkpoints.is_dir():
        return 0
    return max((int(entry.name) for entry in checkpoints.iterdir() if entry.name.isdecimal()), default=0)


def get_model_step(model: TrainableModel[Any], art_path: str) -> int:
    """The newest checkpoint of `model` under `art_path`."""
    return get_step_from_dir(str(Path(art_path, model.project, "models", model.name)))
