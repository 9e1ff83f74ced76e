"""The canonical form of a group: each different attempt once, and the common beginning of all attempts once.

Two attempts are equal when their agents received, said and did the same. Token ids, log-probs, call ids and reasoning
are neither compared nor shown to the judge: attempts are compared by exactly the content that is shown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, cast

from gavel.llm.types import Message
from gavel.prompts import content_hash
from gavel.scenarios.trajectory import History, Trajectory

_PIECE = 100_000
"""Characters that are hashed at once."""

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A message. `role` is one of `ROLES`, or "other"."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A tool call by the agent, with its result (None = there is none)."""

    name: str
    arguments: str
    result: str | None = None


Event = TextEvent | ToolCallEvent


@dataclass(frozen=True, slots=True)
class Conversation:
    events: tuple[Event, ...]
    tools: tuple[str, ...] | None = None
    """One line per tool, a subset of the group's tools; None = all of them."""


@dataclass(frozen=True, slots=True)
class Member:
    """One distinct attempt, which one or more trajectories of the group made."""

    conversations: tuple[Conversation, ...]
    """The main one first, without the events in `CanonicalGroup.shared`."""
    indices: tuple[int, ...]
    """Indices of its trajectories in the group."""
    flags: tuple[str, ...] = ()
    """The flags of its text, see `flags.py`."""


@dataclass(frozen=True)
class CanonicalGroup:
    members: tuple[Member, ...]
    """Pairwise different, ordered by content, so the order of the group does not matter."""
    shared: tuple[Event, ...] = ()
    """The events with which the main conversation of every member begins."""
    tools: tuple[str, ...] = ()
    """The tools of all conversations."""

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def characters(self) -> int:
        """Total length of all text."""
        return sum(map(len, self.texts))

    @cached_property
    def digest(self) -> str:
        """A hash of the content that is the same in every process."""
        parts = list(_parts([Conversation(self.shared, self.tools)]))
        for member in self.members:
            parts += [str(len(member.conversations)), *_parts(member.conversations)]
        return content_hash(*_joined(parts))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """All text of the group; none of it is trusted."""
        events = chain(self.shared, *(c.events for member in self.members for c in member.conversations))
        return (*self.tools, *event_texts(events))


def canonicalize(trajectories: Mapping[int, Trajectory]) -> CanonicalGroup:
    """The canonical group of some trajectories, given by their index in the group."""
    indices: dict[tuple[Conversation, ...], list[int]] = {}
    for index, trajectory in trajectories.items():
        indices.setdefault(tuple(_conversation(h) for h in trajectory.histories()), []).append(index)
    attempts = sorted(indices, key=lambda attempt: list(_parts(attempt)))
    if not attempts:
        return CanonicalGroup(members=())
    shared = _common_prefix([attempt[0].events for attempt in attempts])
    tools = tuple(dict.fromkeys(tool for attempt in attempts for each in attempt for tool in each.tools or ()))

    def shown(conversation: Conversation, skip: int) -> Conversation:
        own = None if conversation.tools == tools else conversation.tools
        return replace(conversation, events=conversation.events[skip:], tools=own)

    members = (
        Member(
            conversations=(shown(main, len(shared)), *(shown(conversation, 0) for conversation in others)),
            indices=tuple(indices[(main, *others)]),
        )
        for main, *others in attempts
    )
    return CanonicalGroup(tuple(members), shared, tools)


def _parts(conversations: Iterable[Conversation]) -> Iterable[str]:
    """The content of conversations as unambiguous texts, for sorting and hashing. Avoids `repr`, slow on long text."""
    for each in conversations:
        yield f"{'all' if each.tools is None else len(each.tools)} tools, {len(each.events)} events"
        yield from each.tools or ()
        for event in each.events:
            match event:
                case TextEvent(role, text):
                    yield from ("said", role, text)
                case ToolCallEvent(name, arguments, result):
                    yield from ("called", name, arguments, "" if result is None else f"={result}")


def _joined(parts: Iterable[str]) -> Iterable[str]:
    """The parts, each with its length, in pieces: not all text at once, during which other threads would wait."""
    piece: list[str] = []
    size = 0
    for part in parts:
        piece.append(f"{len(part)}:{part}")
        size += len(part)
        if size >= _PIECE:
            yield "".join(piece)
            piece, size = [], 0
    yield "".join(piece)


def _conversation(history: History) -> Conversation:
    events: list[Event] = []
    pending: dict[int, Any] = {}  # index in `events` of each call without a result -> the call's id
    for message in history.messages():
        role, text = message.get("role"), _text(message)
        if role in ("tool", "function"):
            index = _answered_call(message, pending)
            if index is None:
                events.append(TextEvent("tool", text))
            else:
                del pending[index]
                call = events[index]
                assert isinstance(call, ToolCallEvent)
                events[index] = replace(call, result=text)
            continue
        calls = list(_calls(message))
        if text or not calls:
            events.append(TextEvent(role if role in ROLES else "other", text))
        if calls:
            pending = {}
        for call_id, call in calls:
            pending[len(events)] = call_id
            events.append(call)
    return Conversation(tuple(events), tuple(dict.fromkeys(_signature(tool) for tool in history.tools or ())))


def _answered_call(message: Message, pending: Mapping[int, Any]) -> int | None:
    """The index of the pending call that a tool message answers; a message without an id answers the first."""
    call_id = message.get("tool_call_id")
    return next((index for index, pending_id in pending.items() if call_id in (None, pending_id)), None)


def _calls(message: Message) -> Iterable[tuple[Any, ToolCallEvent]]:
    for call in message.get("tool_calls") or ():
        body: dict[str, Any] = call.get("function") or call.get("custom") or {}
        arguments = body.get("arguments", body.get("input", ""))
        yield call.get("id"), ToolCallEvent(str(body.get("name", "")), _plain_json(arguments, sort=True))
    if legacy := message.get("function_call"):
        yield None, ToolCallEvent(str(legacy.get("name", "")), _plain_json(legacy.get("arguments", ""), sort=True))


def _text(message: Message) -> str:
    content = message.get("content") or message.get("refusal")
    if content is None:
        return ""
    if isinstance(content, str):
        return _plain_json(content) if message.get("role") == "tool" else content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in cast("list[Any]", content))
    return _plain_json(content)


def _part(part: Any) -> str:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    if isinstance(text := fields.get("text", fields.get("refusal")), str):
        return text
    return f"[{fields.get('type', 'part')} {content_hash(_plain_json(part, sort=True))}]"


def _plain_json(value: Any, *, sort: bool = False) -> str:
    """Compact JSON without escapes; text that is not a JSON object or array stays unchanged."""
    if isinstance(value, str) and not value.lstrip().startswith(("{", "[")):
        return value
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        return json.dumps(parsed, ensure_ascii=False, separators=(",", ":"), sort_keys=sort, default=str)
    except (ValueError, RecursionError):
        return str(value)


def _signature(tool: Message) -> str:
    """`refund(id: string, reason?: string): Refund an order.`, or the schema as JSON where it has another form."""
    try:
        return _describe_tool(tool)
    except (AttributeError, TypeError):
        return _plain_json(tool, sort=True)


def _describe_tool(tool: Message) -> str:
    function = tool.get("function") or tool
    parameters: dict[str, Any] = function.get("parameters") or {}
    required: Sequence[str] = parameters.get("required") or ()
    properties: dict[str, Any] = parameters.get("properties") or {}
    names = (
        f"{name}{'' if name in required else '?'}: {_parameter_type(schema)}" for name, schema in properties.items()
    )
    description = " ".join(str(function.get("description") or "").split())
    signature = f"{function.get('name', '')}({', '.join(names)})"
    return " ".join((f"{signature}: {description}" if description else signature).split())


def _parameter_type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    fields = cast("dict[str, Any]", schema)
    if "enum" in fields:
        return "|".join(_plain_json(option) for option in fields["enum"])
    return str(fields.get("type", "any"))


def _common_prefix(conversations: list[tuple[Event, ...]]) -> tuple[Event, ...]:
    common = takewhile(lambda events: len(set(events)) == 1, zip(*conversations, strict=False))
    return tuple(events[0] for events in common)


def event_texts(events: Iterable[Event]) -> Iterable[str]:
    """All text of the events, in order."""
    for event in events:
        match event:
            case TextEvent(_, text):
                yield text
            case ToolCallEvent(name, arguments, result):
                yield from (name, arguments, result or "")
