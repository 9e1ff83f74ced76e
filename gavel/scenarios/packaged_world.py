"""Addresses of worlds in an installed package: `NAME?option=value&…`, and what to type where the package lacks."""

import importlib
import json
import random
import sys
import threading
from types import ModuleType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from gavel.scenarios.scenario import ScenarioError

_PYTHON = {"True": True, "False": False, "None": None}
"""As text they would be true, all three."""
_O = TypeVar("_O", bound=BaseModel)


def parsed(scheme: str, address: str, options: type[_O]) -> tuple[str, _O, dict[str, Any]]:
    """The name, the options, and what is no option: arguments of the world itself, as JSON or else as text.

    Raises `ScenarioError` for options of another form.
    """
    name, _, query = address.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    empty = [key for key, value in pairs if key in options.model_fields and not value]
    if len(given) < len(pairs) or empty:
        again = next((key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number])), None)
        raise ScenarioError(
            f"{scheme}:{address}: {again or empty[0]} is given {'twice' if again else 'no value'}",
            "Give each option once, as name=value.",
        )
    own = {key: value for key, value in given.items() if key in options.model_fields}
    try:
        found = options.model_validate(own)
    except ValidationError as error:
        first = error.errors()[0]
        raise ScenarioError(
            f"{scheme}:{address}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            f"Options are {', '.join(options.model_fields)}; anything else goes to the world itself.",
        ) from error
    return name, found, {key: _value(value) for key, value in given.items() if key not in own}


def installed(module: str, distribution: str, what: str) -> ModuleType:
    """The module. Raises `ScenarioError` that says what to install where it lacks, or cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ScenarioError(
            f"{what} needs the package {distribution}: {error}", f"pip install {distribution}"
        ) from error


def _value(text: str) -> Any:
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


_ONE_AT_A_TIME = threading.Lock()
_WAIT_SECONDS = 60.0
"""For a world that computes; one that hangs would hold all others."""


class OwnChance:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = None
        self._outer: tuple[Any, Any] | None = None

    def __enter__(self) -> Self:
        if not _ONE_AT_A_TIME.acquire(timeout=_WAIT_SECONDS):
            raise TimeoutError(f"another world did not come to an end within {_WAIT_SECONDS:g} s")
        numpy: Any = sys.modules.get("numpy")
        self._outer = random.getstate(), None if numpy is None else numpy.random.get_state()
        random.setstate(self._python)
        if numpy is not None:
            if self._numpy is None:
                self._numpy = numpy.random.RandomState(self._seed % 2**32).get_state()
            numpy.random.set_state(self._numpy)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            numpy: Any = sys.modules.get("numpy")
            assert self._outer is not None
            python, outer = self._outer
            self._python = random.getstate()
            random.setstate(python)
            if numpy is not None and outer is not None:
                self._numpy = numpy.random.get_state()
                numpy.random.set_state(outer)
        finally:
            _ONE_AT_A_TIME.release()
