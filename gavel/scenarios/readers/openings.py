"""What an attempt was asked: its opening messages, what it is judged by, and the fields that name its task.

    asked(trajectory)            # equal for attempts that can be compared
    named_task(trajectory)       # {"task_id": 7}, from the fields of its row; {} where none names a task

The opening is what stands before the assistant's first turn. Ids and times of messages, which differ between two
recordings of one request, are no part of it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from openai.types.chat.chat_completion import Choice
from pydantic import JsonValue

from gavel.scenarios.readers.row import is_list, is_object
from gavel.scenarios.trajectory import Trajectory

TRUTHS = ("rubric", "reference", "criteria")
"""Fields of a row that say what its attempt is judged by."""
_TASK_FIELD = re.compile(
    r"task(_?(id|name|index|idx))?|(example|problem|question|instance|prompt|puzzle|scenario|dataset_?item"
    r"|reference_?example)_?(id|index|idx)",
    re.IGNORECASE,
)
"""`task`, `task_id`, `taskId`, `problem_id`, …: what programs call the task of a row."""
_BESIDE = ("image", "images", "audio", "audios", "video", "videos", "document", "documents", "attachments", "context")
"""Fields of a row that are a part of what was asked, beside its messages. A context that is no text is none."""
_NESTED = ("metadata", "info", "extra", "extra_info")
"""Fields that hold further fields of the row."""
_OF_A_RECORDING = re.compile(
    r"_?id|uuid|guid|ts|time|date|timestamp|(created|updated|start|end)(_?(at|time))?|cache_control|weight"
    r"|(message|msg|parent|turn|event|trace|span|run|request|response|session|thread|conversation|user)_?(id|uuid)"
    r"|children_?ids|tool_?call_?id|call_?id|tool_?use_?id",
    re.IGNORECASE,
)
"""Fields of a message, or of a part of one, that say when and under which id it was recorded."""


def asked(trajectory: Trajectory, prompt: int | None = None) -> str:
    """What the attempt was asked and is judged by; equal for attempts that can be compared.

    `prompt`: how many messages are the prompt, where that is known.
    """
    truths = {name: trajectory.metadata[name] for name in TRUTHS if name in trajectory.metadata}
    whole = [opening(trajectory, prompt), truths, beside_messages(trajectory)]
    return json.dumps(whole, sort_keys=True, default=str)


def beside_messages(trajectory: Trajectory) -> dict[str, JsonValue]:
    """What was asked in fields of the row beside its messages, such as images: a judge is not shown it."""
    found = {name: value for name in _BESIDE if (value := trajectory.metadata.get(name))}
    return {name: value for name, value in found.items() if name != "context" or isinstance(value, str)}


def opening(trajectory: Trajectory, prompt: int | None = None) -> list[Any]:
    """What stands before the assistant's first turn; where no user has spoken by then, all up to the user's first."""
    items = trajectory.messages_and_choices
    roles = ["assistant" if isinstance(item, Choice) else item.get("role") for item in items]
    end = roles.index("assistant") if "assistant" in roles else len(items)
    if "user" in roles and "user" not in roles[:end]:
        end = roles.index("user") + 1
    end = end if prompt is None else prompt
    return [
        as_asked(item.message.model_dump(mode="json") if isinstance(item, Choice) else item) for item in items[:end]
    ]


def as_asked(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without what differs between two recordings of it."""
    fields: dict[str, Any] = _without_recording(message)
    content = fields.get("content")
    if is_list(content) and len(content) == 1 and is_object(content[0], "text") and content[0].get("type") == "text":
        fields["content"] = content[0]["text"]
    if fields.get("role") == "developer":
        fields["role"] = "system"
    return fields


def _without_recording(value: Any) -> Any:
    if is_list(value):
        return [_without_recording(each) for each in value]
    if not is_object(value):
        return value
    return {
        name: _without_recording(each)
        for name, each in value.items()
        if each is not None and not _OF_A_RECORDING.fullmatch(name)
    }


def named_task(trajectory: Trajectory) -> dict[str, JsonValue]:
    """The fields of the row that name its task, by their (dotted) names."""
    fields = trajectory.metadata
    found = _task_fields(fields)
    for holder in _NESTED:
        inner = fields.get(holder)
        if is_object(inner):
            found |= {f"{holder}.{name}": value for name, value in _task_fields(inner).items()}
    return found


def _task_fields(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in fields.items() if value is not None and _TASK_FIELD.fullmatch(name)}
