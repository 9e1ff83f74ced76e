"""Converts rows of verl's datasets to tasks.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "…"}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

`Task.user` is the last message of the user; the whole row, the prompt among it, is in `Task.data`, which the agent and
the judge are not shown.

A `compute_score` of verl's is the hand reward: it is called as in verl's reward loop, with the text of everything after
the prompt as `solution_str`. If it raises, the measure fails with its error.

    compute_score(data_source=…, solution_str=…, ground_truth=…, extra_info=…) -> 1.0, {"score": 1.0, …}, or a coroutine
"""

import asyncio
import hashlib
import importlib
import inspect
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from gavel.integrations._rewards import run
from gavel.llm.types import Message
from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.formats.row import Row, RowError
from gavel.scenarios.scenario import ScenarioError, module_from_file
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

FIELDS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
_SHAPE = 'A row has "prompt": [{"role": "user", "content": "…"}] and "reward_model": {"ground_truth": …}.'


def read_tasks(path: Path, count: int | None, *, reference: bool = True) -> list[Task]:
    """The tasks of a parquet file, of JSON lines or of a directory of these, in order, up to `count`.

    `reference`: whether the judge is shown the ground truth. Raises `ScenarioError`.
    """
    try:
        rows = [row for rows in rows_by_file(path).values() for row in rows]
    except RowError as error:
        raise ScenarioError(error.message, error.remedy) from error
    if not rows:
        raise ScenarioError(f"{path} holds no rows", _SHAPE)
    seen = Counter[str]()
    named: list[Task] = []
    for task in (_make_task(row, reference=reference) for row in rows[:count]):
        seen[task.id] += 1
        number = seen[task.id]
        named.append(task if number == 1 else task.model_copy(update={"id": f"{task.id}-{number}"}))
    return named


def _make_task(row: Row, *, reference: bool) -> Task:
    fields: Any = row.value
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise ScenarioError(f"{row.where} is no row of verl's: it has no prompt", _SHAPE)
    data: dict[str, Any] = {name: fields[name] for name in FIELDS if name in fields}
    data["prompt"] = prompt = _messages(data["prompt"], row.where)
    for name in ("reward_model", "extra_info"):
        data[name] = _decoded(data.get(name)) or {}
        if not isinstance(data[name], dict):
            raise ScenarioError(f"{row.where}: {name} is no object", _SHAPE)
    info, truth = data["extra_info"], data["reward_model"].get("ground_truth")
    # Named by the content, after the index, so that a row in both splits is detected.
    content = json.dumps([prompt, data["reward_model"] or None], sort_keys=True, default=str)
    name = hashlib.sha256(content.encode()).hexdigest()[:12]
    told = truth if isinstance(truth, str) else None if truth is None else json.dumps(truth, ensure_ascii=False)
    rubric = info.get("rubric")
    return Task(
        id=name if info.get("index") is None else f"{info['index']}-{name}",
        user=next(str(message["content"]) for message in reversed(prompt) if message["role"] == "user"),
        data=data,
        reference=told if reference else None,
        rubric=rubric if isinstance(rubric, str) else None,
    )


def _decoded(value: Any) -> Any:
    """A list or object stored as JSON text, decoded; anything else unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _messages(given: Any, where: str) -> list[Message]:
    decoded = _decoded(given) if isinstance(given, str) and '"role"' in given else given
    items: Any = [{"role": "user", "content": decoded}] if isinstance(decoded, str) else decoded
    messages = [cast(Message, item) for item in cast("list[Any]", items) if isinstance(item, dict)] if items else []
    usable = len(messages) == len(items) and all("content" in each and "role" in each for each in messages)
    if not usable or not any(message["role"] == "user" for message in messages):
        raise ScenarioError(f"{where}: prompt is no list of messages with one of the user's", _SHAPE)
    return messages


_NAME_IT = "Name it as reward=module:function or reward=file.py:function."
_SECONDS = 300.0
"""Timeout in seconds of an asynchronously computed score."""


class ComputeScore:
    """Scores finished trajectories of a verl scenario."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        self._takes = {each.name for each in parameters}

    def __call__(self, trajectory: Trajectory) -> float:
        """The score. Raises `ScenarioError` unless it is a finite number, and the function's own errors."""
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
                found = run(asyncio.wait_for(found, _SECONDS))  # in another loop: this thread may run one
        except SystemExit as error:  # would end the whole command silently
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
    """The number in a value, including NumPy scalars and tensors; NaN for anything else."""
    if isinstance(score, str | bytes):  # "0.5" may be the answer instead of its score
        return math.nan
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def solution(trajectory: Trajectory, prompt: int) -> str:
    """The text after the first `prompt` messages: the agent's turns, and the tool answers between them."""
    return "\n".join(str(message["content"]) for message in trajectory.messages()[prompt:] if message.get("content"))


def load_compute_score(reference: str) -> ComputeScore:
    """The function of `module:function` or `file.py:function`. Raises `ScenarioError`."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ScenarioError(f"reward={reference} names no function", _NAME_IT)
    try:
        module: Any = (
            module_from_file(Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
        )
        function = getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise ScenarioError(
            f"reward={reference} cannot be imported: {type(error).__name__}: {error}", _NAME_IT
        ) from error
    if not callable(function):
        raise ScenarioError(f"reward={reference} is a {type(function).__name__}, and no function", _NAME_IT)
    return ComputeScore(function)
