"""What an attempt shows of itself: its request, its calls and their results. All that written rules depend on."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gavel.judge.prompt.canonical_group import Conversation
from gavel.judge.prompt.events import Event, TextEvent, ToolCallEvent


@dataclass(frozen=True, slots=True)
class CallMade:
    """A tool call that was answered without an error."""

    name: str
    arguments: Mapping[str, Any]
    result: Any
    """Of JSON the value, else the text."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules depend on in one attempt."""

    made: tuple[CallMade, ...] = ()
    """The calls that were answered without an error, in order."""
    failed: tuple[str, ...] = ()
    """Names of the tools whose call returned an error."""
    known: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keys and values of the JSON objects that tools returned; a later value replaces an earlier one."""
    ending: str = ""
    """What the attempt ends with in place of a message to the user; empty where it ends with one."""
    request: str = ""
    """Everything that the user said."""
    said: str = ""
    """Everything that the agent said to the user."""
    reference: str = ""

    @property
    def calls(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.made)


def facts_of(attempt: Sequence[Conversation], reference: str = "") -> Facts:
    """The facts of an attempt as `read_transcripts` gives it: in full, the main conversation first."""
    made: list[CallMade] = []
    failed: list[str] = []
    known: dict[str, Any] = {}
    events = [event for conversation in attempt for event in conversation.events]
    for call in (event for event in events if isinstance(event, ToolCallEvent)):
        result = _value(call.result)
        if _object(result).get("error"):
            failed.append(call.name)
        else:
            made.append(CallMade(call.name, _object(_value(call.arguments)), result))
            known |= _object(result)
    return Facts(
        made=tuple(made),
        failed=tuple(failed),
        known=known,
        ending=_ending(attempt[0].events),
        request=_text_of("user", events),
        said=_text_of("assistant", events),
        reference=reference,
    )


def _ending(events: Sequence[Event]) -> str:
    match events[-1] if events else None:
        case TextEvent("assistant", text):
            return "" if text.strip() else "its last message is empty"
        case ToolCallEvent(name):
            return f"it ends with a call of {name}"
        case _:
            return "it says nothing at the end"


def _text_of(role: str, events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, TextEvent) and event.role == role)


def words_of(value: Any) -> list[str]:
    """The words of a text; of another JSON value, those of all values in it, but not of keys."""
    return [word for text in _texts(value) for word in re.findall(r"\w+", text)]


def _texts(value: Any) -> Iterator[str]:
    stack: list[Any] = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            stack += reversed(list(_object(part).values()))
        elif isinstance(part, list):
            stack += reversed(cast("list[Any]", part))
        elif part is not None:
            yield str(part)


def _value(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return text


def _object(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
