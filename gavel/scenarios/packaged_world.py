"""Addresses of worlds in an installed package: `NAME?option=value&…`, and the install command for a missing package."""

import importlib
import json
import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from gavel.base.fields import problem
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import ScenarioError
from gavel.scenarios.task import DrawnTasks, Task

SEED_BLOCK = 1_000_000
"""Seeds of one list of tasks: the first half is for training, the second held out."""

_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling of JSON constants: as texts all three would be true."""
_O = TypeVar("_O", bound=BaseModel)
_T = TypeVar("_T")


def parsed(scheme: str, address: str, options: type[_O], *, all_known: bool = False) -> tuple[str, _O, dict[str, Any]]:
    """Parses the name, the options, and the world's own arguments, as JSON or else as text.

    `all_known`: other arguments are rejected. Raises `ScenarioError` for options of another form.
    """
    name, _, query = address.partition("?")
    there = f"Options are {', '.join(options.model_fields)}"
    own: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        is_own, is_again = key in options.model_fields, key in own or key in rest
        if is_again or (is_own and not value):
            raise ScenarioError(
                f"{scheme}:{address}: {key} is given {'twice' if is_again else 'no value'}",
                "Give each option once, as name=value.",
            )
        if is_own:
            own[key] = value
        elif all_known:
            raise ScenarioError(f"{scheme}:{address}: {key} is no option", f"{there}.")
        else:
            rest[key] = _value(value)
    try:
        return name, options.model_validate(own), rest
    except ValidationError as error:
        more = "" if all_known else "; anything else goes to the world itself"
        raise ScenarioError(f"{scheme}:{address}: {problem(error)}", f"{there}{more}.") from error


class SeedOptions(BaseModel):
    """Options of worlds whose tasks are seeds."""

    tasks: int = Field(default=200, ge=1, le=SEED_BLOCK // 2)
    """Number of training seeds."""
    held_out: int = Field(default=50, ge=0, le=SEED_BLOCK // 2)
    seed: int = Field(default=0, ge=0, lt=2**31 // SEED_BLOCK)
    """Base seed; different numbers give disjoint lists of seeds."""

    def drawn(self, draw: Callable[[int], Task]) -> tuple[DrawnTasks, DrawnTasks]:
        """The training tasks and the held-out tasks, each drawn from its seed."""
        first = self.seed * SEED_BLOCK
        later = first + SEED_BLOCK // 2
        train, held_out = range(first, first + self.tasks), range(later, later + self.held_out)
        return DrawnTasks(train, draw), DrawnTasks(held_out, draw)


def installed(module: str, distribution: str, what: str) -> ModuleType:
    """Imports the module. Raises `ScenarioError` with the install command if it is missing, or the import error."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ScenarioError(
            f"{what} needs the package {distribution}: {error}", f"pip install {distribution}"
        ) from error


def _value(text: str) -> Any:
    try:
        return json.loads(_PYTHON.get(text, text))
    except ValueError:
        return text


_ONE_AT_A_TIME = threading.Lock()
_WAIT_SECONDS = 60.0
"""Timeout of a world that computes: one that hangs would block all others."""


class OwnChance:
    """The random state of one world, for `random` and NumPy, while it computes: one world at a time."""

    def __init__(self, seed: int) -> None:
        self._own = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    async def run(self, episode: Episode, function: Callable[[], _T]) -> _T:
        """Runs a function of a world in its episode's thread."""

        def work() -> _T:
            with self:
                return function()

        return await episode.plain_calls.run(work)

    def __enter__(self) -> Self:
        if not _ONE_AT_A_TIME.acquire(timeout=_WAIT_SECONDS):
            raise TimeoutError(f"another world did not come to an end within {_WAIT_SECONDS:g} s")
        self._swap()
        return self

    def __exit__(self, *exception: object) -> None:
        self._swap()
        _ONE_AT_A_TIME.release()

    def _swap(self) -> None:
        """Exchanges the process's state and the other one."""
        python, numpy = self._own
        self._own = random.getstate(), np.random.get_state()
        random.setstate(python)
        np.random.set_state(numpy)
