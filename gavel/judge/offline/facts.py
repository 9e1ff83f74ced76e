"""What an attempt shows of itself: its request, its calls and their results. All that written rules depend on."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gavel.judge.prompt.canonical_group import Conversation
from gavel.judge.prompt.provider_formats import Event, TextEvent, ToolCallEvent


@dataclass(frozen=True, slots=True)
class CallMade:
    """A tool call that was answered without an error, by `_failed`."""

    name: str
    arguments: Mapping[str, Any]
    result: Any
    """Of JSON the value, else the text."""
    turn: int = 0
    """Calls of one turn are issued together: none of them knows another's result."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules depend on in one attempt."""

    made: tuple[CallMade, ...] = ()
    """The calls that were answered without an error, in order."""
    failed: tuple[str, ...] = ()
    """Names of the tools whose call returned an error or nothing at all."""
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
    turn = 0
    for call in (event for event in events if isinstance(event, ToolCallEvent)):
        turn += not call.same_turn
        result = _value(call.result)
        if call.result is None or _failed(call.result):
            failed.append(call.name)
        else:
            made.append(CallMade(call.name, _object(_value(call.arguments)), result, turn))
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


_FLAG = re.compile(r"(?:^|\n)\[(\w+): (.*)\]\Z")
"""A field beside the content of a tool's message, as a transcript shows it behind the content."""


def _failed(result: str) -> bool:
    """Whether a result is flagged as an error by its protocol, or its content says so."""
    while flag := _FLAG.search(result):
        if _says_failure({flag[1]: _value(flag[2])}):
            return True
        result = result[: flag.start()]
    content = _value(result)
    if isinstance(content, str):
        return re.match(r"\s*(?:error|traceback)\b", content, re.IGNORECASE) is not None
    return _says_failure(_object(content))


def _says_failure(fields: Mapping[str, Any]) -> bool:
    return (
        any(
            fields.get(key) not in (None, False, 0, "", "false", [], {})
            for key in ("error", "errors", "isError", "is_error")
        )
        or any(fields.get(key) in (False, "false") for key in ("success", "ok"))
        or fields.get("status") == "error"
    )


def tools_named(conversations: Iterable[Conversation]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the tools that conversations declare, and of those that they call."""
    declared: set[str] = set()
    called: set[str] = set()
    for conversation in conversations:
        declared |= {_tool_name(tool) for tool in conversation.tools or ()}
        called |= {event.name for event in conversation.events if isinstance(event, ToolCallEvent)}
    return frozenset(declared), frozenset(called)


def _tool_name(shown: str) -> str:
    """Of a tool's line in a transcript: `refund(id: string): …`, or JSON of a tool that the server runs itself."""
    tool = _object(_value(shown))
    return str(tool.get("name") or tool.get("type")) if tool else shown.partition("(")[0]


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
