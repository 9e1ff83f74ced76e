"""Converts a tool's result to text for the agent and the judge: in full, or as an error.

    {"n": numpy.int64(3), "on": date(2026, 5, 1)}   ->  {"n": 3, "on": "2026-05-01"}
    pandas.DataFrame({"order": [1, 2]})             ->  [{"order": 1}, {"order": 2}]
    b"…", a connection, any other object            ->  ResultError

A value is read by its structure: the conversion methods of tables and arrays, fields, and the protocols of collections.
No library is imported for it.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Any, cast, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

MAX_YIELDED = 10_000
"""Max values of a generator tool, and of an iterator in a result."""
RETURNABLE = "text, numbers, lists, dicts, dataclasses, pydantic models, tables or arrays"
_BYTES = (bytes, bytearray, memoryview)
_NOT_FINITE = {"nan": None, "inf": "Infinity", "-inf": "-Infinity"}
_LISTING = ("to_dicts", "to_pylist", "as_py", "tolist", "to_list")
"""Methods that convert a table, an array or a scalar to Python's own types in full."""


class ResultError(Exception):
    """A value cannot be rendered faithfully."""


def text_of_result(value: Any) -> str:
    """Renders a text unchanged, anything else as JSON.

    A table becomes records, with its index unless that is merely the row numbers. Missing values (NaN, NaT, NA) are
    null wherever they stand; infinite numbers become "Infinity" and "-Infinity". Raises `ResultError`.
    """
    if not isinstance(value, str):
        try:
            value = json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)
        except RecursionError as error:
            raise ResultError("it holds itself, or is nested too deeply") from error
        except ResultError:
            raise
        except Exception as error:  # raised by the value's own methods
            raise ResultError(f"a {type(value).__name__} cannot be read: {type(error).__name__}: {error}") from error
    # Lone surrogates, which JSON can express but no request can carry, are escaped.
    return value.encode("utf-8", "backslashreplace").decode()


def jsonable(value: Any) -> Any:
    """The value as None, bool, int, float, str, list and dict. Raises `ResultError`, and what its methods raise."""
    kind = cast("Any", type(value))
    if isinstance(value, Enum):
        return jsonable(value.value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _NOT_FINITE[f"{float(value)}"]
    if isinstance(value, (*_BYTES, type)):
        raise _unreadable(value)
    if isinstance(value, BaseModel):
        return jsonable(value.model_dump(by_alias=True))
    if isinstance(value, Mapping):
        return _object(cast("Mapping[Any, Any]", value).items())
    if _has(kind, "_asdict"):  # named tuples and database rows
        return _object(value._asdict().items())
    if (names := _fields(kind)) is not None:
        return _object((name, getattr(value, name)) for name in names)
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in cast("list[Any]", value)]
    if _is_table(kind):
        return _convert_table(value)
    if (found := _convert_array(value)) is not value:
        return found
    if _is_row(kind):
        return _object((key, value[key]) for key in value.keys())  # noqa: SIM118
    if _has(kind, "keys"):
        raise _unreadable(value)
    if isinstance(value, Set):
        items = [jsonable(item) for item in cast("Set[Any]", value)]
        try:  # in an order that is the same in every process
            return sorted(items)
        except TypeError:
            return sorted(items, key=json.dumps)
    if isinstance(value, Collection | Iterator):
        return [jsonable(item) for item in all_of(cast("Iterable[Any]", value))]
    if (isinstance(value, date | Decimal) and value != value) or kind.__name__ == "NAType":  # pandas' NaT and NA
        return None
    try:
        return to_jsonable_python(value)  # dates, decimals, paths, addresses, …
    except PydanticSerializationError as error:
        raise _unreadable(value) from error


def all_of(values: Iterable[Any]) -> list[Any]:
    """The values as a list. Raises `ValueError` for an iterator that yields more than MAX_YIELDED."""
    items = list(islice(values, MAX_YIELDED + 1) if isinstance(values, Iterator) else values)
    if isinstance(values, Iterator) and len(items) > MAX_YIELDED:
        raise ValueError(f"it yields more than {MAX_YIELDED:,} values")
    return items


def unreadable_in(hint: Any) -> str | None:
    """The name of a type in an annotation whose values are always rejected; None if there is none."""
    if parts := get_args(hint):
        return next(filter(None, map(unreadable_in, parts)), None)
    if hint in _BYTES:
        return hint.__name__
    methods = ("_asdict", "to_dict", "__array__", "__iter__", *_LISTING)
    if not isinstance(hint, type) or _is_row(hint) or _is_table(hint) or _fields(hint) is not None:
        return None
    if hint is object or inspect.isabstract(hint) or getattr(hint, "_is_protocol", False):
        return None  # the content of its values is left to their class
    if not _has(hint, "keys") and any(_has(hint, method) for method in methods):
        return None
    try:
        TypeAdapter(hint)
    except PydanticUserError:
        return hint.__name__
    return None


def _is_row(kind: Any) -> bool:
    """Whether it is a database row: immutable cells by name. Emails, XML elements and HDF5 files have keys too, but
    hold more than these give."""
    return _has(kind, "keys") and _has(kind, "__getitem__") and not hasattr(kind, "__setitem__")


def _has(kind: Any, method: str) -> bool:
    return callable(getattr(kind, method, None))


def _fields(kind: Any) -> list[str] | None:
    """The field names of a dataclass, or of a class of attrs."""
    fields: Any = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else getattr(kind, "__attrs_attrs__", None)
    return None if fields is None else [field.name for field in fields]


def _object(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in items:
        name = _key(jsonable(key))
        if name in found:
            raise ResultError(f"it has two entries called {name}, of which one must be renamed")
        found[name] = jsonable(value)
    return found


def _key(key: Any) -> str:
    if isinstance(key, list):
        return ",".join(_key(part) for part in cast("list[Any]", key))
    return key if isinstance(key, str) else json.dumps(key)


def _is_table(kind: Any) -> bool:
    """Whether it has the methods of a pandas DataFrame or Series."""
    return _has(kind, "to_dict") and _has(kind, "isna") and hasattr(kind, "index")


def _convert_table(table: Any) -> Any:
    """The rows of a table with its index, unless that is the row numbers; a series as values or, where texts label
    them (`table.iloc[0]`), as an object."""
    is_series = hasattr(table, "to_frame")
    frame = table.to_frame("value" if table.name is None else table.name) if is_series else table
    if not frame.columns.is_unique:
        raise ResultError("it has two columns of one name, of which one must be renamed")
    cells = frame.astype(object).mask(frame.isna(), None)
    labels: list[Any] = frame.index.tolist()
    is_numbered = all(type(label) is int for label in labels) and labels == list(range(len(labels)))
    if is_series and is_numbered:
        return [jsonable(cell) for cell in cells.iloc[:, 0]]
    if is_series and frame.index.names == [None] and frame.index.is_unique and all(isinstance(x, str) for x in labels):
        return _object(zip(labels, cells.iloc[:, 0], strict=True))
    if not is_numbered:
        names = [f"{name} (index)" if name in frame.columns else name for name in frame.index.names]
        cells = cells.rename_axis(names).reset_index()  # "index" or "level_0" where it has no name
    return [_object(zip(cells.columns, row, strict=True)) for row in cells.itertuples(index=False, name=None)]


def _convert_array(value: Any) -> Any:
    """An array, tensor, number or column of a library in Python's own types; any other value unchanged."""
    kind = cast("Any", type(value))
    dtype = getattr(value, "dtype", None)
    number: object = getattr(dtype, "kind", None)
    if number in ("M", "m"):  # raw values would count days or nanoseconds
        times = value.astype(str).tolist()
        return _nested(lambda time: None if time == "NaT" else time, times)
    if not any(_has(kind, method) for method in _LISTING) and _has(kind, "__array__"):
        return jsonable(value.__array__())
    for method in _LISTING:
        if _has(kind, method):
            given = getattr(value, method)()
            if type(given) is kind:  # a numeric type that Python lacks
                raise _unreadable(value)
            if names := getattr(dtype, "names", None):  # of a structured array
                return jsonable(_nested(lambda row: dict(zip(names, row, strict=True)), given))
            return given if number in ("b", "i", "u") else jsonable(given)
    return value


def _nested(convert: Callable[[Any], Any], values: Any) -> Any:
    """Converts each value of nested lists."""
    return [_nested(convert, each) for each in values] if isinstance(values, list) else convert(values)  # pyright: ignore[reportUnknownVariableType]


def _unreadable(value: Any) -> ResultError:
    what = f"the class {value.__name__}" if isinstance(value, type) else f"a value of type {type(value).__name__}"
    return ResultError(f"it holds {what}, which no JSON can hold")
