"""`reference/settings.md`: every setting of a run, a judge and the service, with its type, default and description."""

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gavel.cli.run_file import toml_value
from gavel.judge.service.config import ServiceConfig
from gavel.trainer.run_config import ImitationConfig, RunConfig

from .commands import cell

HEAD = """# Settings

Made from the settings models. A run's settings come from `run.toml`, then the command line; `gavel config SCENARIO > run.toml` prints
all of them with their values, `gavel train run.toml` reads them, and `--set train.loss.kind=gspo` sets any one by its path. A name that is
no setting is refused, with the nearest one that is.

In Python the tables are classes: `gavel.TrainConfig(learning_rate=1e-5)` is the table `[train]`, `gavel.JudgeConfig` the table `[judge]`.
"""

PARTS = (
    ("A training run (run.toml)", "What `gavel train`, `gavel evaluate` and `gavel compare` read.", RunConfig, ""),
    ("Imitation (gavel sft)", "What `gavel sft` reads.", ImitationConfig, "sft: "),
    ("The judge service (gavel.toml)", "What `gavel serve` reads.", ServiceConfig, "service: "),
)


def page() -> str:
    """The page: one section a file, one table for each table of it."""
    lines = [HEAD]
    seen: set[type[BaseModel]] = set()
    for title, about, model, prefix in PARTS:
        lines += [f"## {title}", "", about, ""]
        lines += _table(model, "", prefix, seen)
    return "\n".join(lines)


def _table(model: type[BaseModel], path: str, prefix: str, seen: set[type[BaseModel]]) -> list[str]:
    kind = model.model_fields.get("kind")
    suffix = f", kind = {json.dumps(kind.default)}" if kind is not None and path else ""
    title = f"[{path}]{suffix}" if path else "top of the file"
    lines = [f"### {prefix}`{title}`", ""]
    lines += [f"`{model.__name__}`. {' '.join((model.__doc__ or '').split())}".replace("<", "&lt;"), ""]
    if model in seen:
        return [*lines, "The same settings as in the table of that class above.", ""]
    seen.add(model)
    rows: list[str] = []
    inner: list[str] = []
    for name, field in model.model_fields.items():
        at = f"{path}.{name}" if path else name
        models = _models(field.annotation)
        if models and not _has_plain(field.annotation):
            wildcard = "NAME" if get_origin(_bare(field.annotation)) is dict else ""
            for each in models:
                inner += _table(each, f"{at}.{wildcard}" if wildcard else at, prefix, seen)
            continue
        rows.append(f"| `{name}` | {cell(_type(field))} | {cell(_default(field))} | {cell(field.description or '')} |")
        for each in models:
            inner += _table(each, at, prefix, seen)
    if rows:
        lines += ["| setting | type | default | |", "|---|---|---|---|", *rows, ""]
    return lines + inner


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _parts(annotation: Any) -> tuple[Any, ...]:
    bare = _bare(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        return tuple(part for each in get_args(bare) for part in _parts(each))
    return (bare,)


def _models(annotation: Any) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    for part in _parts(annotation):
        candidates = [*get_args(part)] if get_origin(part) in (dict, list, tuple) else [part]
        found += [one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)]
    return found


def _has_plain(annotation: Any) -> bool:
    plain = [part for part in _parts(annotation) if part is not types.NoneType]
    return any(
        not (isinstance(part, type) and issubclass(part, BaseModel)) for part in plain if get_origin(part) is None
    )


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(each, name)}"
        for each in field.metadata
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if hasattr(each, name)
    ]
    names = [_name(part) for part in _parts(field.annotation)]
    return " or ".join(dict.fromkeys(name for name in names if name)) + (f", {', '.join(bounds)}" if bounds else "")


def _name(part: Any) -> str:
    if part is types.NoneType:
        return ""
    origin = get_origin(part)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in get_args(part))
    words = {str: "text", bool: "true or false", int: "integer", float: "number"}
    if origin in (list, tuple, dict):
        held = [_name(each) for each in get_args(part) if each is not Ellipsis]
        shape = "table of" if origin is dict else "list of"
        return f"{shape} {held[-1] if held else 'values'}"
    if part in words:
        return words[part]
    return getattr(part, "__name__", str(part))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "not set"
    if isinstance(value, BaseModel):
        return f"`{json.dumps(value.model_dump(mode='json', exclude_defaults=True))}`"
    return f"`{toml_value(value)}`"
