"""Names of ART that can be imported and stop with one sentence when they are used.

Scripts import what they need after training at their top; so they train before they stop.
"""

from collections.abc import Callable
from typing import Any

from gavel.compat.art.errors import NotInGavelError


def missing(module: str, remedy: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module of ART that Gavel does not have."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{module}.{name}", remedy)

    return attribute


class Missing:
    """One such name: a call, an attribute of it and an item raise `NotInGavelError`."""

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()

    def __getitem__(self, _: object) -> Any:
        raise self._error()

    def _error(self) -> NotInGavelError:
        return NotInGavelError(f"Gavel has no {self._name}", self._remedy)
