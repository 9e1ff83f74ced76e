"""Detects state shared between episodes: variables outside an environment that a scenario's tools reach and change.

    before = shared_state(scenario)
    before.unseen                                # {"DATABASE of returns.py": "TypeError: cannot pickle …"}
    …                                            # episodes are played
    changed_state(before, scenario)              # ["ORDERS of returns.py"]

It inspects the global variables that the code of a tool or an environment's method names, directly or through the
user's functions and modules; its closure, its defaults, a bound method's object, and the attributes of an environment's
class. Values that cannot be pickled cannot be compared, and are reported with the reason.
"""

import inspect
import pickle
import sysconfig
from abc import ABC
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from gavel.scenarios.scenario import Scenario
from gavel.scenarios.tools import described

_CODE = (type, ModuleType, FunctionType, MethodType, staticmethod, classmethod, property)
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True, slots=True)
class SharedState:
    """The variables that a scenario's episodes share, by readable names."""

    fingerprints: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    """None for a variable that cannot be compared."""
    unseen: dict[str, str] = field(default_factory=dict[str, str])
    """Reason why a variable cannot be compared."""


def shared_state(scenario: Scenario) -> SharedState:
    """Fingerprints of the variables now."""
    found = SharedState()
    for name, value in _find_variables(scenario):
        try:
            found.fingerprints[name] = pickle.dumps(value)
        except Exception as error:  # user-defined pickling may raise anything
            found.fingerprints[name], found.unseen[name] = None, described(error)
    return found


def changed_state(before: SharedState, scenario: Scenario) -> list[str]:
    """Names of the variables that changed, appeared, vanished, or became incomparable since."""
    old, new = before.fingerprints, shared_state(scenario).fingerprints
    return sorted(name for name in old.keys() | new.keys() if old.get(name, "none") != new.get(name, "none"))


def _find_variables(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    for tool in scenario.toolbox:
        yield from _find_reached(tool.function, set())
    make: Any = scenario.environment
    if isinstance(make, partial):
        make = cast("partial[Any]", make).func
    if not isinstance(make, type):
        yield from _find_reached(make, set())
        return
    for kind in make.__mro__:
        attributes: dict[str, Any] = {} if kind is object else dict(vars(kind))
        for name, value in attributes.items():
            function: Any = getattr(value, "__func__", value)  # the function of a static or a class method
            if isinstance(function, FunctionType):
                yield from _find_reached(function, set())
            elif not (name.startswith("__") or name in vars(ABC) or isinstance(value, _CODE)):
                yield f"{name} of the class {kind.__name__}", value


def _find_reached(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The variables that a function reads and that outlive its call, with their names."""
    if isinstance(function, MethodType):
        yield f"{type(function.__self__).__name__} that {function.__name__} belongs to", function.__self__
        function = function.__func__
    function = inspect.unwrap(function) if callable(function) else None
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    names = {*_names(function.__code__)}
    variables = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            variables[name] = cell.cell_contents
    yield from _follow(variables, names, function.__code__.co_filename, seen)
    if function.__defaults__ or function.__kwdefaults__:
        yield f"defaults of {function.__name__}", (function.__defaults__, function.__kwdefaults__)


def _follow(variables: dict[str, Any], names: set[str], file: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The variables that hold values, and those reached from own functions and modules among them."""
    for name, value in variables.items():
        if isinstance(value, FunctionType):
            if not value.__code__.co_filename.startswith(_INSTALLED):
                yield from _find_reached(value, seen)
        elif isinstance(value, ModuleType):
            inner, place = vars(value), vars(value).get("__file__")  # a built-in module has none
            if id(value) not in seen and place and not place.startswith(_INSTALLED):
                yield from _follow(
                    {each: inner[each] for each in names & inner.keys()}, names, place, seen | {id(value)}
                )
        elif not isinstance(value, _CODE):
            yield f"{name} of {Path(file).name}", value


def _names(code: CodeType) -> Iterator[str]:
    """Names that the code and its nested functions look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
