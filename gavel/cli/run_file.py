"""Configuration files: TOML tables with the shape of a settings model, read with errors that name the line.

`read_tables` and `merge` make plain tables, `validate` makes the settings, `to_toml` prints them. What `to_toml`
prints reads back as the same settings.

Relative paths in a file are those beside it, wherever the command is typed (an option's are those of the working
directory): `paths_beside` reads a file's tables so, and `paths_seen_from` writes a configuration so that it reads back
the same.
"""

import difflib
import json
import math
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from gavel.base.errors import GavelError
from gavel.base.text import decoded
from gavel.scenarios.mixture import SEPARATOR, scenario_references
from gavel.trainer.run_config import EvolveRunConfig, RunConfig

Table = dict[str, Any]
Where = dict[tuple[str, ...], str]
"""The source of each value by path: `--orders`, or `run.toml, line 12`."""

_WIDTH = 116
_SIMILAR = 0.75
"""Min similarity of a mistyped name and its suggestion; `difflib`'s ratio."""
SHOW = "`gavel config` shows every setting with its description."
_MAKE = "gavel config > run.toml"
Settings = TypeVar("Settings", bound=BaseModel)


class RunFileError(GavelError):
    """A configuration cannot be read, or is not one."""


def read_tables(path: Path, make: str = _MAKE) -> tuple[Table, Where]:
    """The tables of a TOML file, and the line of each key. Raises `RunFileError`.

    `make`: the command that prints such a file.
    """
    try:
        text = decoded(path.read_bytes())
        return tomllib.loads(text), {key: f"{path}, line {line}" for key, line in _lines(text).items()}
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror}", f"Make one: {make}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{path} is not UTF-8 text: {error.reason}", "Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{path} is not TOML: {error}", f"This makes a file that is: {make}") from error


def _lines(text: str) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([\w.\-\"' ]+?)\s*\]+", line):
            table = _key(header[1])
            found.setdefault(table, number)
        elif key := re.match(r"\s*([\w.\-\"']+)\s*=", line):
            found.setdefault((*table, *_key(key[1])), number)
    return found


def _key(text: str) -> tuple[str, ...]:
    return tuple(part.strip(" \"'") for part in text.split("."))


def merge(tables: Table, values: Mapping[tuple[str, ...], Any]) -> Table:
    """A copy of the tables with the values put in, in whatever order these are.

    Another `kind` (of loss, say) begins its table anew, before what else is set in that table.
    """
    result = dict(tables)
    for path, value in sorted(values.items(), key=lambda each: (len(each[0]), each[0][-1] != "kind")):
        (*above, name), table = path, result
        for part in above:
            inner = table.get(part)
            table[part] = dict(inner) if isinstance(inner, dict) else {}
            table = table[part]
        if name == "kind" and path[:-1] not in values and table.get("kind") != value:
            table.clear()
        table[name] = value
    return result


def validate(model: type[Settings], tables: Table, where: Where, show: str = SHOW) -> Settings:
    """The settings of these tables. Raises `RunFileError` for a wrong key or value, saying where it was set.

    `show`: where all settings are to be seen.
    """
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    path = _path_in(tables, first)
    place = next((where[path[:n]] for n in range(len(path), 0, -1) if path[:n] in where), "")
    prefix = f"{place}: " if place else ""
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = _known_fields(model, first["loc"][:-1])
        nearest = difflib.get_close_matches(path[-1], known, 1, _SIMILAR)
        table = f"[{'.'.join(path[:-1])}]" if path[1:] else "the top of the configuration"
        remedy = f"Did you mean {nearest[0]}?" if nearest else f"There are: {', '.join(known)}."
        raise RunFileError(f"{prefix}{table} has no {path[-1]}.", remedy)
    what = first["msg"].removeprefix("Value error, ").rstrip(".")
    what = what[:1].lower() + what[1:]
    got = "" if isinstance(first["input"], dict) or first["type"] == "missing" else f", not {first['input']!r}"
    raise RunFileError(f"{prefix}{name}: {what}{got}.", show)


def _path_in(tables: Table, first: ErrorDetails) -> tuple[str, ...]:
    """The keys in an error's location, which also holds the tags of unions."""
    path: list[str] = []
    at: Any = tables
    for part in first["loc"]:
        if isinstance(at, dict) and part in at:
            at = at[part]
            path.append(str(part))
        elif isinstance(at, list) and isinstance(part, int):
            at = at[part]
    if first["type"] == "missing":
        path.append(str(first["loc"][-1]))
    return tuple(path)


def _known_fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The fields of the table at an error's location, in which a union's tag chooses the model."""
    models = [model]
    for part in map(str, loc):
        fields = [each.model_fields[part] for each in models if part in each.model_fields]
        tagged = [each for each in models if "kind" in each.model_fields and each.model_fields["kind"].default == part]
        models = [one for field in fields for one in models_in(field.annotation)] or tagged or models
    return list(dict.fromkeys(field for one in models for field in one.model_fields))


def to_toml(settings: BaseModel, derived_from: BaseModel | None = None) -> str:
    """The settings as TOML, each with its description as a comment.

    Values that are not set in `derived_from` follow from others: they are printed as comments, and reading the file
    derives them again.
    """
    return "\n".join(_table(settings, derived_from or settings, ())).strip() + "\n"


def _table(settings: BaseModel, given: BaseModel, path: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    tables: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            inner = (*path, name)
            summary = " ".join((type(value).__doc__ or "").split())
            tables += ["", *_comment(summary), f"[{'.'.join(inner)}]", *_table(value, getattr(given, name), inner)]
            continue
        lines += _comment(" ".join((field.description or "").split()))
        if isinstance(value, dict) and any(isinstance(inner, BaseModel) for inner in value.values()):
            for key, inner in value.items():
                at = (*path, name, toml_value(key))
                tables += ["", f"[{'.'.join(at)}]", *_table(inner, inner, at)]
            continue
        if value is None:
            lines.append(f"# {name} is not set")
        elif isinstance(value, SecretStr):
            lines.append(f"# {name} is set, and not shown")
        elif name in settings.model_fields_set - given.model_fields_set:
            lines.append(f"# {name} = {toml_value(value)}  (follows from other settings)")
        else:
            lines.append(f"{name} = {toml_value(value)}")
    return lines + tables


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]


def toml_value(value: Any) -> str:
    """The value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return str(value)
        case int() | float():
            return repr(value)
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case BaseModel():
            return toml_value(value.model_dump(exclude_none=True))
        case dict():
            return "{" + ", ".join(f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            return toml_value(str(value))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a union, a list or a table of this type holds, or the model itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for member in get_args(annotation) for model in models_in(member)]


Run = TypeVar("Run", RunConfig, EvolveRunConfig)


def paths_beside(tables: Table, folder: Path) -> Table:
    """The tables of a file in `folder`, with its paths as they are from the working directory."""
    return _move_paths(tables, lambda path: os.path.normpath(folder / path), folder, ())


def paths_seen_from(config: Run, folder: Path) -> Run:
    """The configuration, with its paths as they are from `folder`."""
    return _move_paths(config, lambda path: path if os.path.isabs(path) else os.path.relpath(path, folder), Path(), ())


def _move_paths(settings: Any, move: Callable[[str], str], folder: Path, path: tuple[str, ...]) -> Any:
    """The settings at `path` with their paths moved; relative ones start at `folder`."""
    if isinstance(settings, list):
        return [_move_paths(each, move, folder, path) for each in settings]
    if isinstance(settings, str | Path):
        return type(settings)(_move_path(str(settings), move, folder, path))
    if isinstance(settings, dict):
        return {name: _move_paths(value, move, folder, (*path, name)) for name, value in settings.items()}
    if not isinstance(settings, BaseModel):
        return settings
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    moved = {name: _move_paths(value, move, folder, (*path, name)) for name, value in values.items()}
    changed = {name: value for name, value in moved.items() if value != values[name]}
    return settings.model_copy(update=changed) if changed else settings


def _move_path(text: str, move: Callable[[str], str], folder: Path, path: tuple[str, ...]) -> str:
    """A setting that is a path, or may be one, is told by where it stands, and by its form."""
    match path:
        case ("scenario",):
            parts = [each.partition(":") for each in scenario_references(text)]
            is_file = [file.endswith(".py") for file, _, _ in parts]
            return SEPARATOR.join(
                f"{move(file)}{colon}{variable}" if own else f"{file}{colon}{variable}"
                for (file, colon, variable), own in zip(parts, is_file, strict=True)
            )
        case ("judge", "rubric") | ("rubrics", _):
            return f"@{move(text[1:])}" if text.startswith("@") else text
        case ("model", "from_checkpoint"):  # a run's name may look like a path: it is one where there is a directory
            run, at, step = text.rpartition("@")
            if not at or not step.isdecimal() or (folder / text).is_dir():
                run, at, step = text, "", ""
            return f"{move(run)}{at}{step}" if (folder / run).is_dir() else text
        case ("model", "base_model"):  # so may a hub id
            is_path = (folder / text).is_dir()
        case ("judge", "cassette"):
            is_path = text != "none"
        case ("train", "reference"):
            is_path = text not in ("base", "start") and not text.isdecimal()
        case ("backend", "engine", "python"):
            is_path = os.sep in text
        case ("database",):
            is_path = "://" not in text
        case _:
            is_path = path in (("base",), ("loop", "checks", "golden"))
    return move(text) if is_path else text
