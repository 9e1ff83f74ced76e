"""A `compute_score` function of verl's as the hand reward of a scenario: asked as verl's reward loop asks it.

    compute_score(data_source=…, solution_str=…, ground_truth=…, extra_info=…) -> 1.0, {"score": 1.0, …}, or a coroutine

`solution_str` is the text of all that came after the prompt. A function that raises fails the measure with its error.
"""

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from gavel.scenarios.own_imports import neighbours_first
from gavel.scenarios.scenario import ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_SHAPE = "Name it as reward=module:function or reward=file.py:function."
_SECONDS = 300.0
"""Of a score that is computed asynchronously."""


class ComputeScore:
    """Scores finished trajectories of a verl scenario."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        self._takes = {each.name for each in parameters}

    def __call__(self, trajectory: Trajectory) -> float:
        """The score. Raises `ScenarioError` for an answer without a finite number, and what the function raises."""
        data = cast("dict[str, Any]", Task.of(trajectory.metadata).data)
        model, info = (cast("dict[str, Any]", data.get(name) or {}) for name in ("reward_model", "extra_info"))
        asked: dict[str, Any] = {
            "data_source": data.get("data_source", ""),
            "solution_str": solution(trajectory, len(data["prompt"])),
            "ground_truth": model.get("ground_truth"),
            "extra_info": {**info, "num_turns": sum(1 for _ in trajectory.choices())},
        }
        known = {name: value for name, value in asked.items() if self._takes_all or name in self._takes}
        try:
            found = self._function(**known)
            if inspect.iscoroutine(found):
                found = _awaited(found)
        except SystemExit as error:  # would end the whole command without a word
            raise ScenarioError(
                f"compute_score ended with SystemExit({error.code!r})", "Let it return a number, or raise an Exception."
            ) from error
        value = _number(cast("dict[str, Any]", found).get("score") if isinstance(found, dict) else found)
        if not math.isfinite(value):
            raise ScenarioError(
                f"compute_score gave {found!r:.200}", "Let it return a finite number, or a dict with one as `score`."
            )
        return value


def _number(score: Any) -> float:
    """Of whatever has one, also a scalar of NumPy's or a tensor's; NaN for anything else."""
    if isinstance(score, str | bytes):  # "0.5" may be the answer, in place of its score
        return math.nan
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def solution(trajectory: Trajectory, prompt: int) -> str:
    """The text after the first `prompt` messages: the agent's turns, and between them what tools answered."""
    texts: list[str] = []
    for item in trajectory.messages_and_choices[prompt:]:
        content = item.message.content if isinstance(item, Choice) else item.get("content")
        if content:
            texts.append(str(content))
    return "\n".join(texts)


def load_compute_score(reference: str) -> ComputeScore:
    """Of `module:function` or `file.py:function`. Raises `ScenarioError`."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ScenarioError(f"reward={reference} names no function", _SHAPE)
    try:
        module: Any = _from_file(Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise ScenarioError(
            f"reward={reference} cannot be imported: {type(error).__name__}: {error}", _SHAPE
        ) from error
    if not callable(function):
        raise ScenarioError(f"reward={reference} is a {type(function).__name__}, and no function", _SHAPE)
    return ComputeScore(function)


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}")
    spec = importlib.util.spec_from_file_location(f"_gavel_verl_{path.stem}", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = path.resolve().parent
    neighbours_first(folder)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def _awaited(work: Coroutine[Any, Any, object]) -> object:
    """What a coroutine gives, in a loop of its own: a measure may be asked for while another loop runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asyncio.wait_for(work, _SECONDS)).result()
