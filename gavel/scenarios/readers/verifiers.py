"""Results of verifiers' evaluations (`results.jsonl`): prompt, completion, reward, and the example that was asked.

    {"example_id": 3, "task": "desk", "prompt": [{…}], "completion": [{…}], "answer": "42", "reward": 1.0, "exact": 1.0}

The rollouts of one example are a group; the columns of single reward functions are metrics.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.readers.checks import as_number, first_line, trajectory
from gavel.scenarios.readers.row import Attempt, Format, Row, Source, is_object
from gavel.scenarios.readers.tool_calls import tools as openai_tools
from gavel.scenarios.readers.trl import prompt_and_completion

_NO_METRICS = ("example_id", "id", "reward", "generation_ms", "scoring_ms", "total_ms", "answer", "task")


_OLDER = ("id", "task", "answer", "reward")
"""What rows of verifiers before 0.1.4 have, where those of one example have one `id`."""


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    ids = Counter(json.dumps(row.value.get("id")) for row in rows)
    repeated = any(number > 1 for number in ids.values())
    for row in rows:
        fields = cast(Message, row.value)
        said, prompt = prompt_and_completion(row, fields["prompt"], fields["completion"] or "")
        rest = {key: value for key, value in fields.items() if key not in ("prompt", "completion", "tool_defs")}
        numbers = {key: value for key, value in rest.items() if key not in _NO_METRICS and _is_metric(value)}
        if fields.get("answer"):
            rest.setdefault("reference", fields["answer"])
        ended = _ended(fields)
        tools = openai_tools(fields.get("tool_defs"))
        found = trajectory(said, row.where, tools=tools, fields=rest, metrics=numbers, **ended)
        example = "example_id" if "example_id" in fields or not repeated else "id"
        task = {name: fields[name] for name in ("task", example) if name in fields}
        yield Attempt(found, row, VERIFIERS.name, task, prompt)


def _is_metric(value: Any) -> bool:
    return isinstance(value, int | float) and as_number(value) is not None


def _ended(fields: Message) -> dict[str, Any]:
    if error := fields.get("error"):
        return {"status": "failed", "status_reason": first_line(error)}
    return {"status": "truncated"} if fields.get("is_truncated") is True else {}


VERIFIERS = Format(
    "verifiers results",
    ("prompt", "completion", "example_id", "reward|task"),
    lambda value: (
        is_object(value, "prompt", "completion", "example_id", "reward|task")
        or is_object(value, "prompt", "completion", *_OLDER)
    ),
    _read,
    task="example_id",
)
