"""Where ART's scripts look for a model's files; the directories of a run itself are in docs/files.md."""

from pathlib import Path
from typing import Any

from gavel.compat.art.model import Model, gavel_name

_ROOT = ".art"


def get_default_art_path() -> str:
    return _ROOT


def get_models_dir(project_name: str, art_path: str | None = None) -> str:
    return f"{art_path or _ROOT}/{gavel_name(project_name)}/models"


def get_output_dir_from_model_properties(project: str, name: str, art_path: str | None = None) -> str:
    return f"{get_models_dir(project, art_path)}/{gavel_name(name)}"


def get_model_dir(model: Model[Any], art_path: str | None = None) -> str:
    return get_output_dir_from_model_properties(model.project, model.name, art_path)


def get_step_checkpoint_dir(model_output_dir: str, step: int) -> str:
    """The PEFT adapter of a step."""
    return f"{model_output_dir}/checkpoints/{step:04d}"


def get_trajectories_dir(model_output_dir: str) -> str:
    """Of the run directory, which is beside `models`."""
    directory = Path(model_output_dir)
    return str(directory.parent.parent / directory.name / "trajectories")


def get_trajectories_split_dir(model_output_dir: str, split: str) -> str:
    return f"{get_trajectories_dir(model_output_dir)}/{split}"
