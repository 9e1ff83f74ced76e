"""The canonical form of a group: each different attempt once, and the common beginning of all attempts once.

Two attempts are equal when their agents received, said and did the same. Token ids, log-probs, call ids and reasoning
are neither compared nor shown to the judge: attempts are compared by exactly the content that is shown. Texts that look
alike are equal (`comparison_form`), and one of them is shown for all. What of a
message becomes which event: `provider_formats.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, cast

from gavel.judge.prompt.provider_formats import (
    Event,
    Image,
    TextEvent,
    View,
    event_texts,
    images_of,
    plain_json,
    read_messages,
    turn_starts,
    with_texts,
)
from gavel.judge.prompt.provider_formats import ToolCallEvent as ToolCallEvent
from gavel.judge.prompt.sanitize import comparison_form
from gavel.llm.types import Message
from gavel.prompts import content_hash
from gavel.scenarios.trajectory import History, Trajectory

_NAME = 80
"""Characters of an agent's name that are shown."""
REFERENCE = "reference"
"""The role of a task's reference, which is the first of the shared events; no message can have it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    events: tuple[Event, ...]
    tools: tuple[str, ...] | None = None
    """One line per tool, a subset of the group's tools; None = all of them."""
    agent: str = ""
    """Who acts, where an attempt has several agents."""


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
        return content_hash(*(f"{len(part)}:{part}" for part in parts))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """All text of the group; none of it is trusted."""
        agents = dict.fromkeys(c.agent for member in self.members for c in member.conversations if c.agent)
        return (*self.tools, *agents, *event_texts(self._events))

    @cached_property
    def images(self) -> dict[Image, int]:
        """The different images of the group, numbered from 1: the same numbers in every order of its members."""
        return {image: number for number, image in enumerate(dict.fromkeys(images_of(self._events)), start=1)}

    def turns(self, member: int) -> int:
        """The agent's turns in the member's main conversation."""
        return len(turn_starts((*self.shared, *self.members[member].conversations[0].events)))

    @property
    def _events(self) -> Iterable[Event]:
        return chain(self.shared, *(c.events for member in self.members for c in member.conversations))


def canonicalize(trajectories: Mapping[int, Trajectory], view: View | None = None) -> CanonicalGroup:
    """The canonical group of some trajectories, given by their index in the group, as a judge with this view sees it.

    Raises `JudgeError` when the view's redaction fails.
    """
    view = view or View()
    read = {
        index: tuple(_conversation(each, view) for each in (trajectory, *trajectory.additional_histories))
        for index, trajectory in trajectories.items()
    }
    indices: dict[tuple[Conversation, ...], list[int]] = {}
    for index, attempt in _with_one_form(read).items():
        indices.setdefault(attempt, []).append(index)
    attempts = sorted(indices, key=lambda attempt: list(_parts(attempt)))
    if not attempts:
        return CanonicalGroup(members=())
    side_by_side = zip(*(main.events for main, *_ in attempts), strict=False)
    shared = tuple(events[0] for events in takewhile(lambda events: len(set(events)) == 1, side_by_side))
    tools = tuple(dict.fromkeys(tool for attempt in attempts for each in attempt for tool in each.tools or ()))

    def shown(conversation: Conversation, skip: int) -> Conversation:
        own = None if conversation.tools == tools else conversation.tools
        return Conversation(conversation.events[skip:], own, conversation.agent)

    members: list[Member] = []
    for attempt in attempts:
        conversations = (shown(each, 0 if number else len(shared)) for number, each in enumerate(attempt))
        members.append(Member(tuple(conversations), tuple(indices[attempt])))
    return CanonicalGroup(tuple(members), shared, tools)


def _with_one_form(read: Mapping[int, tuple[Conversation, ...]]) -> Mapping[int, tuple[Conversation, ...]]:
    """The attempts with one text, the first in order, in place of all that look like it."""
    texts = {text for attempt in read.values() for conversation in attempt for text in event_texts(conversation.events)}
    first: dict[str, str] = {}
    chosen = {text: first.setdefault(comparison_form(text), text) for text in sorted(texts)}
    if len(first) == len(chosen):
        return read

    def one_form(of: Conversation) -> Conversation:
        return replace(of, events=tuple(with_texts(event, lambda text: chosen.get(text, text)) for event in of.events))

    return {index: tuple(map(one_form, attempt)) for index, attempt in read.items()}


def with_reference(group: CanonicalGroup, reference: str | None) -> CanonicalGroup:
    """The group with the task's reference, an answer or a fact sheet, for the judge to see."""
    if reference is None or not group.members:
        return group
    return replace(group, shared=(TextEvent(REFERENCE, reference), *group.shared))


def has_reference(group: CanonicalGroup) -> bool:
    return any(isinstance(event, TextEvent) and event.role == REFERENCE for event in group.shared[:1])


def _parts(conversations: Iterable[Conversation]) -> Iterable[str]:
    """The content of conversations as unambiguous texts, for sorting and hashing. Avoids `repr`, slow on long text."""
    for each in conversations:
        yield f"{'all' if each.tools is None else len(each.tools)} tools, {len(each.events)} events"
        yield from each.tools or ()
        if each.agent:
            yield from ("agent", each.agent)
        for event in each.events:
            if isinstance(event, TextEvent):
                yield from ("said", event.role, event.text)
            else:
                yield "called in the same turn" if event.same_turn else "called"
                yield from (event.name, event.arguments, "" if event.result is None else f"={event.result}")
            for sent in event.attachments:
                yield from ("sent" if isinstance(sent, Image) else "unseen", sent.tag)


def _conversation(history: Trajectory | History, view: View) -> Conversation:
    tools = (view.text(_signature(tool)) for tool in history.tools or ())
    agent = " ".join(view.text(history.agent or "").split())[:_NAME]
    return Conversation(read_messages(history.messages(), view), tuple(dict.fromkeys(tools)), agent)


def _signature(tool: Message) -> str:
    """`refund(id: string, reason?: string): Refund an order.`, or the schema as JSON where it has another form."""
    try:
        return _describe_tool(tool.get("function") or tool)
    except (AttributeError, TypeError, KeyError):
        return plain_json(tool, sort=True)


def _describe_tool(function: Message) -> str:
    """Raises `AttributeError`, `TypeError` or `KeyError` for a schema of another form."""
    parameters: dict[str, Any] = function.get("parameters") or function.get("input_schema") or {}
    required: Sequence[str] = parameters.get("required") or ()
    properties: dict[str, Any] = parameters.get("properties") or {}
    definitions: dict[str, Any] = parameters.get("$defs") or parameters.get("definitions") or {}
    names = (
        f"{name}{'' if name in required else '?'}: {_parameter_type(schema, definitions)}"
        for name, schema in properties.items()
    )
    description = " ".join(str(function.get("description") or "").split())
    signature = f"{function['name']}({', '.join(names)})"
    return " ".join((f"{signature}: {description}" if description else signature).split())


def _parameter_type(schema: Any, definitions: Mapping[str, Any], depth: int = 3) -> str:
    """`integer|null`, or the options of an enum; "any" where the schema says nothing that is read."""
    if not isinstance(schema, dict) or not depth:
        return "any"
    fields = cast("dict[str, Any]", schema)
    if "enum" in fields:
        return "|".join(plain_json(option) for option in fields["enum"])
    named = definitions.get(str(fields.get("$ref", "")).rpartition("/")[2])
    options = [named] if named is not None else fields.get("anyOf") or fields.get("oneOf") or fields.get("allOf") or []
    kinds = [_parameter_type(option, definitions, depth - 1) for option in options]
    if not kinds and isinstance(kind := fields.get("type"), list):
        kinds = [str(each) for each in cast("list[Any]", kind)]
    return "|".join(dict.fromkeys(kinds)) or str(fields.get("type", "any"))
