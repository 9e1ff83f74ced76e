"""Samples of Inspect logs (`.eval`, or `.json`): messages, scores, and the sample's id, whose epochs are a group.

    {"id": 1, "epoch": 2, "input": "…", "target": "42", "messages": [{…}], "scores": {"match": {"value": "C"}}}

Scores are metrics by their scorer's name; a single one is the independent reward. The target is the reference.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.row import (
    INDEPENDENT,
    Attempt,
    Format,
    Row,
    Source,
    as_number,
    first_line,
    is_list,
    is_object,
    trajectory,
)
from gavel.scenarios.formats.row import tools as openai_tools

_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Correct, incorrect, partly correct, no answer."""
_ATTACHED = "attachment://"


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        sample: Message = row.value
        attachments: Any = sample.get("attachments") or {}
        items = _attached(sample["messages"], attachments) or [{"role": "user", "content": str(sample["input"])}]
        said, _ = chat.messages([_message(item) if is_object(item, "role") else item for item in items], row.where)
        fields = {name: sample[name] for name in ("id", "epoch", "target", "metadata") if sample.get(name) is not None}
        if sample["target"]:
            fields["reference"] = sample["target"]
        given: Message = sample.get("scores") or {}
        if is_object(older := sample.get("score"), "value"):  # logs of 2024 and before
            given = {"score": older, **given}
        scores = {name: _value(score) for name, score in given.items()}
        if len(scores) == 1:
            scores[INDEPENDENT] = next(iter(scores.values()))
        found = trajectory(said, row.where, tools=_tools(sample), fields=fields, metrics=scores, **_ended(sample))
        yield Attempt(found, row, INSPECT.name, task={"id": sample["id"]})


def _attached(value: Any, attachments: Message) -> Any:
    """The value with what the log keeps beside it (long texts, images) in its place."""
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return attachments.get(value.removeprefix(_ATTACHED), value)
    if is_list(value):
        return [_attached(each, attachments) for each in value]
    return {name: _attached(each, attachments) for name, each in value.items()} if is_object(value) else value


def _message(message: Message) -> Message:
    found = {name: message[name] for name in ("role", "content", "tool_calls", "tool_call_id") if message.get(name)}
    content = found.setdefault("content", "")
    if is_object(error := message.get("error"), "message") and not content:
        found["content"] = error["message"]
    if is_list(content):
        thoughts = [part for part in content if is_object(part) and part.get("type") == "reasoning"]
        parts = [_part(part) for part in content if part not in thoughts]
        only = parts[0] if len(parts) == 1 and is_object(parts[0], "text") else None
        found["content"] = only["text"] if only else parts
        if thoughts:
            found["reasoning_content"] = "\n".join(str(part.get("reasoning") or "") for part in thoughts)
    return found


def _part(part: Any) -> Any:
    if is_object(part, "type", "text"):
        return {"type": "text", "text": part["text"]}
    if is_object(part, "type", "image") and isinstance(part["image"], str):
        return {"type": "image_url", "image_url": {"url": part["image"]}}
    return part


def _value(score: Any) -> Any:
    value = score.get("value") if is_object(score) else score
    return _GRADES.get(value, as_number(value)) if isinstance(value, str) else value


def _tools(sample: Message) -> list[Message] | None:
    """The tools that the model was offered in its first call."""
    events: list[Any] = sample.get("events") or []
    for event in events:
        if is_object(event, "tools") and event.get("event") == "model":
            return openai_tools(event["tools"])
    return None


def _ended(sample: Message) -> dict[str, Any]:
    if is_object(error := sample.get("error")):
        return {"status": "failed", "status_reason": first_line(error.get("message"))}
    limit = sample.get("limit")
    return {"status": "truncated", "status_reason": f"limit: {limit.get('type')}"} if is_object(limit) else {}


INSPECT = Format(
    "Inspect log",
    ("id", "epoch", "input", "target", "messages"),
    lambda value: is_object(value, "id", "epoch", "input", "target", "messages"),
    _read,
    task="sample id",
)
