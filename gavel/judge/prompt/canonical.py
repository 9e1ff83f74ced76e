"""A group as its judge should see it: each different attempt once, what all share once.

Two members are the same when their agents were given, said and did the same. Token ids, log-probs, call ids and
reasoning are no part of that, and no part of what a judge is shown: whatever is shown is also what is compared.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile
from typing import Any

from gavel.llm.types import Message
from gavel.prompts import content_hash
from gavel.scenarios.trajectory import History, Trajectory

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A message of one of the `ROLES`, or of "other"."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A tool call by the agent, and what came back (None = nothing did)."""

    name: str
    arguments: str
    result: str | None = None


Event = TextEvent | ToolCallEvent


@dataclass(frozen=True, slots=True)
class Conversation:
    events: tuple[Event, ...]
    tools: tuple[str, ...] | None = None
    """One line for each tool, all of them among the group's; None = all of the group's."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the different attempts in a group."""

    conversations: tuple[Conversation, ...]
    """The main one first, without the events that the group shares."""
    indices: tuple[int, ...]
    """Which trajectories of the group these are."""
    flags: tuple[str, ...] = ()
    """What the gate found in its text."""


@dataclass(frozen=True)
class CanonicalGroup:
    members: tuple[Member, ...]
    """All different; their order depends on their content, not on the group's order."""
    shared: tuple[Event, ...] = ()
    """With what the main conversation of every member begins."""
    tools: tuple[str, ...] = ()
    """Every tool of any conversation."""

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def characters(self) -> int:
        """The length of all text."""
        return sum(map(len, self.texts))

    @cached_property
    def digest(self) -> str:
        """Tells groups of different content apart, in any process."""
        parts = list(_parts([Conversation(self.shared, self.tools)]))
        for member in self.members:
            parts += [str(len(member.conversations)), *_parts(member.conversations)]
        return content_hash("".join(f"{len(part)}:{part}" for part in parts))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """All text that came from outside."""
        events = chain(self.shared, *(c.events for member in self.members for c in member.conversations))
        return (*self.tools, *event_texts(events))


def canonicalize(trajectories: Mapping[int, Trajectory]) -> CanonicalGroup:
    """The canonical group of trajectories by their index in the group."""
    indices: dict[tuple[Conversation, ...], list[int]] = {}
    for index, trajectory in trajectories.items():
        indices.setdefault(tuple(_conversation(h) for h in trajectory.histories()), []).append(index)
    attempts = sorted(indices, key=lambda attempt: list(_parts(attempt)))
    if not attempts:
        return CanonicalGroup(members=())
    shared = _shared_prefix([attempt[0].events for attempt in attempts])
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
    """What tells conversations apart, as texts. Long ones stay as they are: `repr` takes milliseconds over them."""
    for each in conversations:
        yield f"{'all' if each.tools is None else len(each.tools)} tools, {len(each.events)} events"
        yield from each.tools or ()
        for event in each.events:
            match event:
                case TextEvent(role, text):
                    yield from ("said", role, text)
                case ToolCallEvent(name, arguments, result):
                    yield from ("called", name, arguments, "" if result is None else f"={result}")


def _conversation(history: History) -> Conversation:
    events: list[Event] = []
    waiting: dict[int, Any] = {}  # place in `events` of each call that has no result yet -> its id
    for message in history.messages():
        role, text = message.get("role"), _text(message)
        if role in ("tool", "function"):
            place = _answered(message, waiting)
            if place is None:
                events.append(TextEvent("tool", text))
            else:
                del waiting[place]
                called = events[place]
                assert isinstance(called, ToolCallEvent)
                events[place] = ToolCallEvent(called.name, called.arguments, text)
            continue
        calls = list(_calls(message))
        if text or not calls:
            events.append(TextEvent(role if role in ROLES else "other", text))
        if calls:
            waiting = {}
        for call_id, call in calls:
            waiting[len(events)] = call_id
            events.append(call)
    return Conversation(tuple(events), tuple(dict.fromkeys(_signature(tool) for tool in history.tools or ())))


def _answered(message: Message, waiting: Mapping[int, Any]) -> int | None:
    """Which waiting call a tool message answers; one without an id answers the first."""
    call_id = message.get("tool_call_id")
    return next((place for place, waiting_id in waiting.items() if call_id in (None, waiting_id)), None)


def _calls(message: Message) -> Iterable[tuple[Any, ToolCallEvent]]:
    for call in message.get("tool_calls") or ():
        body = call.get("function") or call.get("custom") or {}
        arguments = body.get("arguments", body.get("input", ""))
        yield call.get("id"), ToolCallEvent(str(body.get("name", "")), _plain_json(arguments, sort=True))
    if legacy := message.get("function_call"):
        yield None, ToolCallEvent(str(legacy.get("name", "")), _plain_json(legacy.get("arguments", ""), sort=True))


def _text(message: Message) -> str:
    match message.get("content") or message.get("refusal"):
        case None:
            return ""
        case str(text):
            return _plain_json(text) if message.get("role") == "tool" else text
        case list(parts):
            return "\n".join(_part(part) for part in parts)
        case other:
            return _plain_json(other)


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(text := part.get("text", part.get("refusal")), str):
        return text
    kind = part.get("type", "part") if isinstance(part, dict) else "part"
    return f"[{kind} {content_hash(_plain_json(part, sort=True))}]"


def _plain_json(value: Any, *, sort: bool = False) -> str:
    """JSON without spaces or escapes; text that is no JSON object or array is left as it is."""
    if isinstance(value, str) and not value.lstrip().startswith(("{", "[")):
        return value
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        return json.dumps(parsed, ensure_ascii=False, separators=(",", ":"), sort_keys=sort, default=str)
    except (ValueError, RecursionError):
        return str(value)


def _signature(tool: Message) -> str:
    """`refund(id: string, reason?: string): Refund an order.`; what is no such schema is shown as it is."""
    try:
        return _described(tool)
    except (AttributeError, TypeError):
        return _plain_json(tool, sort=True)


def _described(tool: Message) -> str:
    function = tool.get("function") or tool
    parameters = function.get("parameters") or {}
    required = parameters.get("required") or ()
    names = (
        f"{name}{'' if name in required else '?'}: {_type(schema)}"
        for name, schema in (parameters.get("properties") or {}).items()
    )
    description = " ".join(str(function.get("description") or "").split())
    signature = f"{function.get('name', '')}({', '.join(names)})"
    return " ".join((f"{signature}: {description}" if description else signature).split())


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return "|".join(_plain_json(option) for option in schema["enum"])
    return str(schema.get("type", "any"))


def _shared_prefix(conversations: list[tuple[Event, ...]]) -> tuple[Event, ...]:
    alike = takewhile(lambda events: len(set(events)) == 1, zip(*conversations, strict=False))
    return tuple(events[0] for events in alike)


def event_texts(events: Iterable[Event]) -> Iterable[str]:
    """All text of the events, in order."""
    for event in events:
        match event:
            case TextEvent(_, text):
                yield text
            case ToolCallEvent(name, arguments, result):
                yield from (name, arguments, result or "")
