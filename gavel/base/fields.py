"""Models that people construct by hand: an invalid value raises a one-line error with its field and what is allowed.

    Trajectory(status="done")  ->  FieldError: Trajectory.status is 'done': input should be 'finished', 'truncated' …

`model_validate` raises pydantic's own error, for code that reads files and requests.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from gavel.base.errors import GavelError

Given = ParamSpec("Given")


class FieldError(GavelError, ValueError):
    """A model's constructor was given an invalid value, or an unknown field."""


class Constructed(BaseModel):
    """A model whose constructor raises `FieldError`, also for an unknown field."""

    if not TYPE_CHECKING:  # type checkers are to see the fields

        def __init__(self, *unnamed: Any, **given: Any) -> None:
            kind = type(self)
            fields = kind.__pydantic_fields__
            is_open = kind.model_config.get("extra") == "forbid"  # else pydantic would ignore unknown ones silently
            _check_given(kind.__name__, [*fields], unnamed, [] if is_open else given, fields)
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise misfit(kind, error) from error

        __init__.__pydantic_base_init__ = True  # keeps pydantic from calling it for a nested model


def named_arguments(init: Callable[Given, None]) -> Callable[Given, None]:
    """Lets the constructor of another class raise `FieldError` for arguments that it does not take, lacks, or is given
    where it takes a list of such."""
    parameters = dict(list(inspect.signature(init).parameters.items())[1:])
    by_position = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values())
    required = [name for name, each in parameters.items() if each.default is each.empty]
    by_name = [*required[by_position:], *parameters]

    @wraps(init)
    def check(*own: Given.args, **given: Given.kwargs) -> None:
        name, values = type(own[0]).__name__, own[1:]
        _check_given(name, by_name, values[by_position:], given, parameters)
        for field, parameter in list(parameters.items())[len(values) :]:
            value = given.get(field)
            if field in required and field not in given:
                raise FieldError(f"{name} lacks {field}.", f"Give it: {name}({field}=…).")
            is_one = isinstance(value, str | BaseModel | Mapping) or not isinstance(value, Iterable)
            if field in given and is_one and get_origin(parameter.annotation) is Sequence:
                raise FieldError(f"{name}.{field} is one {type(value).__name__}.", f"Give a list: {field}=[…].")
        init(*own, **given)

    return check


def _check_given(
    kind: str, names: Sequence[str], unnamed: Sequence[Any], given: Iterable[str], fields: Mapping[str, Any]
) -> None:
    if unnamed:
        raise FieldError(f"{kind} takes {_shown(unnamed[0])} by name only.", f"Name it, such as {kind}({names[0]}=…).")
    if unknown := [name for name in given if name not in fields]:
        raise _no_such_field(kind, fields, min(unknown))


def _no_such_field(kind: str, fields: Mapping[str, Any], name: str) -> FieldError:
    """Names the nearest: one that begins so, that is described by the word, or that is written alike."""
    nearest = [field for field in fields if field.startswith(f"{name}_")]
    described = {field: getattr(each, "description", None) or "" for field, each in fields.items()}
    nearest += [field for field, told in described.items() if re.search(rf"\b{re.escape(name)}\b", told)]
    nearest += difflib.get_close_matches(name, fields, 1)
    there = f"Did you mean {nearest[0]}?" if nearest else f"There are: {', '.join(fields)}."
    return FieldError(f"{kind} has no field {name}.", there)


def problem(error: ValidationError) -> str:
    """The innermost validation error, as `field is value: what pydantic says of it`."""
    details = error.errors(include_url=False)
    first = max(details, key=lambda each: len(each["loc"]))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, FieldError):
        return inner.message
    alike = [each for each in details if each["input"] is first["input"]]  # the alternatives of a union
    says = " or ".join(dict.fromkeys(_lowered(each["msg"].removeprefix("Value error, ").rstrip(".")) for each in alike))
    where = ".".join(str(part) for part in first["loc"] if len(alike) == 1 or part in alike[-1]["loc"])
    value = "" if first["type"] == "missing" or not where else f" is {_shown(first['input'])}"
    return f"{where}{value}: {says}".removeprefix(": ")


def misfit(kind: type[BaseModel], error: ValidationError) -> FieldError:
    """Describes the invalid value and what is allowed."""
    told = problem(error)
    loc = max((each["loc"] for each in error.errors(include_url=False)), key=len)
    remedy, model = "", kind
    for name in map(str, loc):
        if name not in model.model_fields:
            unknown = [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]
            if loc in unknown and name == loc[-1]:
                return _no_such_field(model.__name__, model.model_fields, name)
            break
        fits = model.model_fields[name].annotation
        remedy = " ".join(filter(None, [f"{name} is to be {_plain(fits)}.", model.model_fields[name].description]))
        if not (isinstance(fits, type) and issubclass(fits, BaseModel)):
            break
        model = fits
    if "JsonValue" in remedy:
        remedy += " JSON has text, numbers, true, false, null, lists, and dicts whose keys are text."
    return FieldError(f"{kind.__name__}{'.' if loc else ': '}{told}", remedy)


def _plain(annotation: Any) -> str:
    """The type as it is written in source: `list[Criterion] | None`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(arguments[0])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        return " | ".join(map(_plain, arguments))
    name = "None" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))
    return f"{name}[{', '.join(map(_plain, arguments))}]" if arguments else name


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= 80:
        return text
    size = f" of {len(cast('Sequence[Any]', value))}" if isinstance(value, Sequence | Mapping) else ""
    return f"a {type(value).__name__}{size}: {text[:60]}…"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
