"""Detects state shared between episodes: variables outside an environment that a scenario's tools reach and change.

    before = shared_state(scenario)      # {"ORDERS of returns.py": b"…", "DATABASE of returns.py": "TypeError: …"}
    …                                    # episodes are played
    changed_state(before, scenario)      # ["ORDERS of returns.py"]

It inspects the global variables that the code of a tool or an environment's method names, directly or through the
user's functions and modules; its closure, its defaults, a bound method's object, and the attributes of an environment's
class.
"""

import inspect
import pickle
import sysconfig
from abc import ABC
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from gavel.scenarios.environment import class_of
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.tools import described

_CODE = (type, staticmethod, classmethod, property)
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
SharedState = dict[str, bytes | str]
"""A fingerprint of each variable by its readable name, or the reason why it cannot be compared."""


def shared_state(scenario: Scenario) -> SharedState:
    """The variables that the scenario's episodes share, now."""
    found: SharedState = {}
    for name, value in _find_variables(scenario):
        try:
            found[name] = pickle.dumps(value)
        except Exception as error:  # user-defined pickling may raise anything
            found[name] = described(error)
    return found


def changed_state(before: SharedState, scenario: Scenario) -> list[str]:
    """Names of the variables that changed, appeared, vanished, or became incomparable since."""
    now = shared_state(scenario)
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _find_variables(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    for tool in scenario.toolbox:
        yield from _reach("", tool.function, set(), set())
    made = class_of(scenario.environment)
    if made is None and scenario.environment is not None:
        yield from _reach("", scenario.environment, set(), set())
    for kind in () if made is None else made.__mro__[:-1]:
        for name, value in vars(kind).items():
            function: Any = getattr(value, "__func__", value)  # the function of a static or a class method
            if isinstance(function, FunctionType) or not (name.startswith("__") or name in vars(ABC)):
                yield from _reach(f"{name} of the class {kind.__name__}", function, set(), set())


def _reach(label: str, value: Any, names: set[str], seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """The variable, or those that a function or a module gives to code with these `names`."""
    if isinstance(value, MethodType):
        yield f"{type(value.__self__).__name__} that {value.__name__} belongs to", value.__self__
    value = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
    if isinstance(value, FunctionType):
        code, names, file = value.__code__, {*_names(value.__code__)}, value.__code__.co_filename
        inner = {name: value.__globals__[name] for name in names & value.__globals__.keys()}
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # not assigned yet
                inner[name] = cell.cell_contents
        if value.__defaults__ or value.__kwdefaults__:
            inner[f"defaults of {value.__name__}"] = (value.__defaults__, value.__kwdefaults__)
    elif isinstance(value, ModuleType):
        file = getattr(value, "__file__", None) or _INSTALLED[0]  # a built-in module has none
        inner = {name: vars(value)[name] for name in names & vars(value).keys()}
    else:
        if not isinstance(value, _CODE):
            yield label, value
        return
    key = id(value), frozenset(names)
    if key in seen or (seen and file.startswith(_INSTALLED)):
        return
    seen.add(key)
    for name, each in inner.items():
        label = name if name.startswith("defaults of ") else f"{name} of {Path(file).name}"
        yield from _reach(label, each, names, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Names that the code and its nested functions look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
