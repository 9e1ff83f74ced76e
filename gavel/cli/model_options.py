"""Command-line options made from the fields of a settings model.

    FLAGS = [Flag("judge.orders", "--orders")]
    app.command()(with_options(function, RunConfig, FLAGS))

Type, range, choices, help and default of `--orders` are those of `RunConfig.judge.orders`. An option that is not given
leaves no value, so that `given` holds what the user typed and nothing else.
"""

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gavel.base.errors import GavelError


@dataclass(frozen=True, slots=True)
class Flag:
    """An option that sets one field."""

    path: str
    """Of the field: `judge.orders`."""
    name: str
    """Of the option: `--orders`."""
    default: object = None
    """What the help shows as default, where the field's own is not used."""

    by_key: bool = False
    """For a table: whether each key=value sets one key and leaves the others; else the option is the whole table."""

    @property
    def key(self) -> str:
        """The name of the parameter that receives the value."""
        return self.name.lstrip("-").replace("-", "_")


class OptionError(GavelError):
    """An option's value cannot be read."""


def with_options(function: Callable[..., None], model: type[BaseModel], flags: Sequence[Flag]) -> Callable[..., None]:
    """The function with the options that its parameter `values` receives, as a mapping, instead of that parameter."""

    def command(**arguments: Any) -> None:
        own = {name: value for name, value in arguments.items() if name not in keys}
        function(**own, values={name: arguments[name] for name in keys})

    keys = {flag.key for flag in flags}
    signature = inspect.signature(function)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "values"]
    parameters += [_parameter(model, flag) for flag in flags]
    command.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command


def given(values: Mapping[str, Any], model: type[BaseModel], flags: Sequence[Flag]) -> dict[tuple[str, ...], Any]:
    """The values that the user typed, by the field's path."""
    found: dict[tuple[str, ...], Any] = {}
    for flag in flags:
        value = values.get(flag.key)
        if value is None or value == []:
            continue
        path = tuple(flag.path.split("."))
        if _base_type(_field(model, flag.path)[0]) is not dict:
            found[path] = value
            continue
        texts = [text for item in value for text in ([item] if set("{[") & set(item) else item.split(","))]
        pairs = _pairs(flag.name, texts)
        found |= {(*path, key): item for key, item in pairs.items()} if flag.by_key else {path: pairs}
    return found


def parse_assignments(assignments: Sequence[str]) -> dict[tuple[str, ...], Any]:
    """What `--set train.loss.kind=gspo` sets; a value is read as TOML or JSON where it is that, else as a text.

    Raises `OptionError` for a key that is given twice.
    """
    return {tuple(key.split(".")): value for key, value in _pairs("--set", assignments).items()}


def _pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key, value in (_pair(option, text) for text in texts):
        if key in pairs:
            raise OptionError(f"{option} names {key} twice.", "Give each key once.")
        pairs[key] = value
    return pairs


def _pair(option: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"{option} {text}: this is not of the form key=value.", f"Write {option} key=value.")
    return key.strip(), _parse(value.strip())


def _parse(text: str) -> Any:
    """TOML or JSON where it is either, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _parameter(model: type[BaseModel], flag: Flag) -> inspect.Parameter:
    annotation, field = _field(model, flag.path)
    base = _base_type(annotation)
    limits = {type(limit): limit for limit in field.metadata}
    low, high = limits.get(Ge), limits.get(Le)
    numeric = base in (int, float)
    option = typer.Option(
        f"{flag.name}/--no-{flag.name.removeprefix('--')}" if base is bool else flag.name,
        help=_help(model, field, flag),
        show_default=False,
        min=low.ge if numeric and low else None,  # pyright: ignore[reportArgumentType]
        max=high.le if numeric and high else None,  # pyright: ignore[reportArgumentType]
        metavar="KEY=VALUE" if base is dict else None,
        rich_help_panel=_group(model, flag.path),
    )
    kind: Any = list[str] if base is dict or get_origin(annotation) in (list, tuple) else base
    return inspect.Parameter(
        flag.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _group(model: type[BaseModel], path: str) -> str | None:
    """Where the help lists the option."""
    table = path.rpartition(".")[0]
    while table and table not in _GROUPS:
        table = table.rpartition(".")[0]
    return _GROUPS.get(table or model.__name__.removesuffix("Config").lower())


_GROUPS = {
    "model": "Model",
    "model.lora": "Adapter",
    "judge": "Judge",
    "loop": "Rollouts and evaluation",
    "evolve": "Rounds",
    "choose": "What is imitated",
    "train": "Learning",
    "backend": "Where it runs",
}
"""Titles of the tables of settings, in a run or by themselves."""


def _help(model: type[BaseModel], field: FieldInfo, flag: Flag) -> str:
    """The field's description, else that of its table, and the default unless the description names one."""
    description = field.description
    if not description and "." in flag.path:
        description = _field(model, flag.path.rpartition(".")[0])[1].description
    text = " ".join((description or "").split())
    default = flag.default if flag.default is not None else field.get_default(call_default_factory=True)
    if default in (None, PydanticUndefined, {}, ()) or isinstance(default, bool) or "Default" in text:
        return text
    return f"{text} Default: {default}.".strip()


def _field(model: type[BaseModel], path: str) -> tuple[Any, FieldInfo]:
    """The annotation and the field at `path`; a choice between models offers the fields of all of them."""
    name, _, rest = path.partition(".")
    field = model.model_fields[name]
    if not rest:
        return field.annotation, field
    members = [member for member in models_in(field.annotation) if rest.partition(".")[0] in member.model_fields]
    found = [_field(member, rest) for member in members]
    return Union[tuple(annotation for annotation, _ in found)], found[0][1]  # noqa: UP007 - of a computed tuple


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models among the members of a union, or the model itself."""
    if get_origin(annotation) in (Union, UnionType):
        return [model for member in get_args(annotation) for model in models_in(member)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _base_type(annotation: Any) -> Any:
    """What the option takes: bool, int, float, a choice of literals, dict (key=value pairs), else str."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    members = [get_args(member)[0] if get_origin(member) is Annotated else member for member in members]
    members = [member for member in members if member is not type(None) and get_origin(member) is not Callable]
    literals = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if literals and len(literals) >= len(members) and all(get_origin(member) is Literal for member in members):
        return Literal[tuple(dict.fromkeys(literals))]
    if len(members) == 1 and (get_origin(members[0]) or members[0]) in (bool, int, float, dict, Path):
        return get_origin(members[0]) or members[0]
    return str
