"""Rows of verl's datasets -> tasks.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "…"}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

`Task.user` is the last message of the user; the whole row, the prompt among it, is in `Task.data`, which the agent and
the judge are not shown.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.formats.row import Row, RowError
from gavel.scenarios.scenario import ScenarioError
from gavel.scenarios.task import Task

FIELDS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
_SHAPE = 'A row has "prompt": [{"role": "user", "content": "…"}] and "reward_model": {"ground_truth": …}.'


def read_tasks(path: Path, count: int | None, *, reference: bool = True) -> list[Task]:
    """The tasks of a parquet file, of JSON lines or of a directory of these, in order; the first `count`.

    `reference`: the judge is told the ground truth. Raises `ScenarioError`.
    """
    try:
        rows = [row for rows in rows_by_file(path).values() for row in rows]
    except RowError as error:
        raise ScenarioError(error.message, error.remedy) from error
    if not rows:
        raise ScenarioError(f"{path} holds no rows", _SHAPE)
    tasks = [_task(row, reference=reference) for row in rows[:count]]
    seen: dict[str, int] = {}
    named: list[Task] = []
    for task in tasks:
        number = seen[task.id] = seen.get(task.id, 0) + 1
        named.append(task if number == 1 else task.model_copy(update={"id": f"{task.id}-{number}"}))
    return named


def _task(row: Row, *, reference: bool) -> Task:
    value: Any = row.value
    fields = cast(Message, value) if isinstance(value, dict) else {}
    if "prompt" not in fields:
        raise ScenarioError(f"{row.where} is no row of verl's: it has no prompt", _SHAPE)
    prompt = _messages(fields["prompt"], row.where)
    model, known = (_object(fields, name, row.where) for name in ("reward_model", "extra_info"))
    truth = model.get("ground_truth")
    objects = {"reward_model": model, "extra_info": known}
    data: dict[str, Any] = {name: objects.get(name, fields[name]) for name in FIELDS if name in fields}
    data["prompt"] = prompt
    told = truth if isinstance(truth, str) else None if truth is None else json.dumps(truth, ensure_ascii=False)
    rubric = known.get("rubric")
    return Task(
        id=_name(known, data),
        user=next(str(message["content"]) for message in reversed(prompt) if message["role"] == "user"),
        data=data,
        reference=told if reference else None,
        rubric=rubric if isinstance(rubric, str) else None,
    )


def _object(fields: Message, name: str, where: str) -> Message:
    """A field that holds an object, or one as JSON text; empty where it lacks."""
    value: Any = _decoded(fields.get(name)) or {}
    if not isinstance(value, dict):
        raise ScenarioError(f"{where}: {name} is no object", _SHAPE)
    return cast(Message, value)


def _decoded(value: Any) -> Any:
    """A list or object that was written into its column as JSON text; anything else as it is."""
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


def _name(info: Message, data: dict[str, Any]) -> str:
    """By its content, so that the same row in both splits is found out, behind the index that it has."""
    text = json.dumps([data["prompt"], data.get("reward_model")], sort_keys=True, default=str)
    content = hashlib.sha256(text.encode()).hexdigest()[:12]
    index = info.get("index")
    return content if index is None else f"{index}-{content}"
