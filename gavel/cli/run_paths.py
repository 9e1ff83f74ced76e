"""Relative paths in a run.toml, or the service's gavel.toml, are those beside it, wherever the command is typed.

    configs/run.toml: scenario = "../desk.py"         desk.py, also from another directory
    options: --rubric @rubric.txt                      of the working directory, as with every command

`paths_beside` reads a file's tables so, and `paths_seen_from` writes a configuration so that it reads back the same.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from gavel.scenarios.mixture import SEPARATOR, scenario_references
from gavel.trainer.run_config import EvolveRunConfig, RunConfig

Table = dict[str, Any]
Settings = TypeVar("Settings", bound=Table | RunConfig | EvolveRunConfig)
Run = TypeVar("Run", RunConfig, EvolveRunConfig)
_Move = Callable[[str], str]


def paths_beside(tables: Table, folder: Path) -> Table:
    """The tables of a file in `folder`, with its paths as they are from the working directory."""

    def move(path: str) -> str:
        return os.path.normpath(folder / path)

    return _moved(tables, move, folder)


def paths_seen_from(config: Run, folder: Path) -> Run:
    """The configuration, with its paths as they are from `folder`."""

    def move(path: str) -> str:
        return path if os.path.isabs(path) else os.path.relpath(path, folder)

    return _moved(config, move, Path())


def _scenario(value: str, move: _Move, folder: Path) -> str:
    moved: list[str] = []
    for each in scenario_references(value):
        path, colon, variable = each.partition(":")
        moved.append(f"{move(path)}{colon}{variable}" if path.endswith(".py") else each)
    return SEPARATOR.join(moved)


def _rubric(value: str, move: _Move, folder: Path) -> str:
    return f"@{move(value[1:])}" if value.startswith("@") else value


def _cassette(value: str, move: _Move, folder: Path) -> str:
    return value if value == "none" else move(value)


def _base_model(value: str, move: _Move, folder: Path) -> str:
    """A hub id may look like a path: it is one where there is such a directory."""
    return move(value) if (folder / value).is_dir() else value


def _checkpoint(value: str, move: _Move, folder: Path) -> str:
    """A run's name may look like a path: it is one where there is such a directory."""
    path, at, step = value.rpartition("@")
    if "://" in value:
        return value
    if at and step.isdecimal() and not (folder / value).is_dir():
        return f"{_base_model(path, move, folder)}@{step}"
    return _base_model(value, move, folder)


def _reference(value: str, move: _Move, folder: Path) -> str:
    return value if value in ("base", "start") or value.isdecimal() else move(value)


def _database(value: str, move: _Move, folder: Path) -> str:
    return value if "://" in value else move(value)


def _file(value: str, move: _Move, folder: Path) -> str:
    return move(value)


def _program(value: str, move: _Move, folder: Path) -> str:
    return move(value) if os.sep in value else value


_EVERY = "*"
"""All keys of a table."""
_PATHS: Mapping[tuple[str, ...], Callable[[str, _Move, Path], str]] = {
    ("scenario",): _scenario,
    ("base",): _file,
    ("model", "base_model"): _base_model,
    ("model", "from_checkpoint"): _checkpoint,
    ("judge", "rubric"): _rubric,
    ("judge", "cassette"): _cassette,
    ("backend", "engine", "python"): _program,
    ("train", "reference"): _reference,
    ("loop", "checks", "golden"): _file,
    ("database",): _database,
    ("rubrics", _EVERY): _rubric,
}
"""Every setting of a run or of the service that may be a path, and how it is told from what is none."""


def _moved(settings: Settings, move: _Move, folder: Path) -> Settings:
    for path, moved in _PATHS.items():
        settings = _changed(settings, path, lambda value, moved=moved: moved(value, move, folder))
    return settings


def _changed(settings: Any, path: Sequence[str], change: _Move) -> Any:
    """The table or model with another text or path at `path`, if there is one."""
    name, *rest = path
    if isinstance(settings, dict):
        if name == _EVERY:
            for key in list(settings):
                settings = _changed(settings, (key, *rest), change)
            return settings
        value = settings.get(name)
    elif isinstance(settings, BaseModel) and name in type(settings).model_fields:
        value = getattr(settings, name)
    else:
        return settings
    if rest:
        changed = _changed(value, rest, change)
    elif isinstance(value, str | Path):
        changed = type(value)(change(str(value)))
    elif isinstance(value, list):
        changed = [type(each)(change(str(each))) for each in value]
    else:
        return settings
    if changed == value:
        return settings
    if isinstance(settings, dict):
        return {**settings, name: changed}
    return settings.model_copy(update={name: changed})
