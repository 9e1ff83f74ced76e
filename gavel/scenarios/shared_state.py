"""Finds state that episodes share: what the tools of a scenario reach outside of an environment, and change.

    before = shared_state(scenario)
    …                                            # episodes are played
    changed_state(before, scenario)              # ["ORDERS of returns.py"]

It looks at the global variables that a tool's code names, directly or through functions of the same module that it
names, at its closure and at what a bound method belongs to. What cannot be compared is left out.
"""

import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from gavel.scenarios.scenario import Scenario

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, MethodType)


def shared_state(scenario: Scenario) -> dict[str, bytes]:
    """A fingerprint of each variable that the scenario's function tools share, by its name for people."""
    found: dict[str, bytes] = {}
    for tool in scenario.toolbox:
        for name, value in _reached(tool.function, set()):
            try:
                found[name] = pickle.dumps(value)
            except Exception:
                continue
    return found


def changed_state(before: dict[str, bytes], scenario: Scenario) -> list[str]:
    """Names of the variables that have changed since."""
    after = shared_state(scenario)
    return sorted(name for name, fingerprint in before.items() if after.get(name, fingerprint) != fingerprint)


def _reached(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Variables that a function reads which outlive its call, with their names."""
    if isinstance(function, MethodType):
        yield f"{type(function.__self__).__name__} that {function.__name__} belongs to", function.__self__
        function = function.__func__
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    where = Path(function.__code__.co_filename).name
    variables = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        variables[name] = cell.cell_contents
    for name, value in variables.items():
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            yield from _reached(value, seen)
        elif not isinstance(value, _PLAIN):
            yield f"{name} of {where}", value


def _names(code: CodeType) -> Iterator[str]:
    """Names that the code and the functions within it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
