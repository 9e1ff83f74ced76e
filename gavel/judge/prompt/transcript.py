"""Canonical group -> prompt text whose structure no trajectory can forge, and back.

    ¦k3v trajectory W7QX
    ¦k3v assistant: I look the order up.
    ¦k3v call get_order({"id":"7890"})
    ¦k3v result: {"days":10}

Every structural line begins with the fence: the reserved character and a random code. The reserved character is
replaced in trajectory text, and code and labels are chosen so that they do not occur in it. So text cannot end its
line, speak as another role or name another member: `read_transcripts` inverts `render_transcripts` for any text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from random import Random

from gavel.judge.prompt.canonical import CanonicalGroup, Conversation, Event, TextEvent, ToolCallEvent
from gavel.judge.prompt.events import Image, Unseen
from gavel.judge.prompt.flags import ADDRESSES_JUDGE, CONTENTLESS, EMPTY, TOOL_ADDRESSES_JUDGE, UNSEEN
from gavel.judge.prompt.sanitize import RESERVED, normalize_for_matching, sanitize
from gavel.judge.prompt.shared_text import find_shared_prefixes, repeated_texts

_LETTERS = "BCDFGHJKMNPQRSTVWXZ"
_DIGITS = "3479"
_OF_ALL = "of every trajectory"
_REFERENCE = " = block "

_NOTES = {
    EMPTY: "the agent said and did nothing",
    CONTENTLESS: "it says nothing but an opener or punctuation",
    ADDRESSES_JUDGE: "its text addresses the judge",
    TOOL_ADDRESSES_JUDGE: "text that a tool returned addresses the judge",
    UNSEEN: "some of its content is not shown",
}
"""What the prompt says about each flag."""


@dataclass(frozen=True, slots=True)
class PromptMarkers:
    """The random parts of a prompt; `labels[i]` names member i of the canonical group."""

    code: str
    labels: tuple[str, ...]

    @property
    def fence(self) -> str:
        return f"{RESERVED}{self.code} "


def draw_markers(group: CanonicalGroup, random: Random) -> PromptMarkers:
    """A code and one label per member, all different, none of which occurs in the group's text, disguised or not."""
    haystack = _searchable_text(group)
    markers: list[str] = []
    tries = 0
    while len(markers) <= len(group.members):
        size = 4 + tries // 100
        tries += 1
        marker = random.choice(_LETTERS) + "".join(random.choices(_LETTERS + _DIGITS, k=size - 1))
        if marker not in markers and marker.casefold() not in haystack:
            markers.append(marker)
    code, *labels = markers
    return PromptMarkers(code.lower(), tuple(labels))


@lru_cache(maxsize=1)
def _searchable_text(group: CanonicalGroup) -> str:
    """The group's text, raw and sanitized. Cached, since the markers of all calls on a group are drawn in a row."""
    return "\n".join(normalize_for_matching(version) for text in set(group.texts) for version in {text, sanitize(text)})


def render_transcripts(group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers) -> str:
    """The group's text with its members in `order` (indices into `group.members`).

    Prefixes and long texts that the members share are shown once and referred to by number.
    """
    shown = [(member, number) for member in sorted(order) for number in _conversation_numbers(group, member)]
    tree = find_shared_prefixes([group.members[member].conversations[number].events for member, number in shown])
    events = chain(group.shared, *(prefix.events for prefix in tree.prefixes), *tree.suffixes)
    blocks = repeated_texts(events)
    lines: list[str] = []
    if group.tools:
        lines += ["tools", *(f"- {number} {sanitize(tool)}" for number, tool in enumerate(group.tools, start=1))]
    lines += [f"block {number}: {sanitize(text)}" for text, number in blocks.items()]
    if group.shared:
        lines += [f"start {_OF_ALL}", *_events(group.shared, blocks, group.images)]
    for number, prefix in enumerate(tree.prefixes, start=1):
        lines += [f"start {number}", *_continuation(prefix.parent), *_events(prefix.events, blocks, group.images)]
    index_of = {conversation: n for n, conversation in enumerate(shown)}
    for member in order:
        lines.append(f"trajectory {markers.labels[member]}")
        lines += [f"note: {_NOTES[flag]}" for flag in group.members[member].flags]
        for number in _conversation_numbers(group, member):
            if number > 0:
                lines.append(f"conversation {number + 1}")
            tools = group.members[member].conversations[number].tools
            if tools is not None:
                lines.append(f"only tools {', '.join(str(group.tools.index(t) + 1) for t in tools) or 'none'}")
            n = index_of[member, number]
            lines += [*_continuation(tree.prefix_of[n]), *_events(tree.suffixes[n], blocks, group.images)]
    return "\n".join(markers.fence + line for line in [*lines, "end of all"])


def _conversation_numbers(group: CanonicalGroup, member: int) -> range:
    return range(len(group.members[member].conversations))


def _continuation(start: int | None) -> list[str]:
    return [] if start is None else [f"goes on from start {start + 1}"]


def _events(events: Sequence[Event], blocks: Mapping[str, int], images: Mapping[Image, int]) -> list[str]:
    lines: list[str] = []
    for event in events:
        match event:
            case TextEvent(role, text):
                lines.append(f"{role}{_text(text, blocks, ': ')}")
            case ToolCallEvent(name, arguments, result):
                lines.append(f"call {_name(name)}{_text(arguments, blocks, '(', ')')}")
                if result is not None:
                    lines.append(f"result{_text(result, blocks, ': ')}")
        for each in event.attachments:
            lines.append(f"image {images[each]}: {each.tag}" if isinstance(each, Image) else f"unseen: {each.tag}")
    return lines


def _text(text: str, blocks: Mapping[str, int], before: str, after: str = "") -> str:
    return f"{_REFERENCE}{blocks[text]}" if text in blocks else f"{before}{sanitize(text)}{after}"


def _name(tool: str) -> str:
    return re.sub(r"[^\w.:/-]", "_", sanitize(tool)) or "_"


@dataclass(slots=True)
class _Reading:
    """A conversation whose lines are being read."""

    events: list[Event] = field(default_factory=list[Event])
    tools: list[str] | None = None


def read_transcripts(prompt: str) -> dict[str, tuple[Conversation, ...]]:
    """Each attempt by its label, in the order shown, in full: shared content is inserted where it belongs."""
    opening = re.search(rf"^{RESERVED}\w+ ", prompt, re.MULTILINE)
    if opening is None:
        return {}
    common = conversation = _Reading()
    tools: dict[str, str] = {}
    blocks: dict[str, str] = {}
    starts: dict[str, _Reading] = {}
    attempts: dict[str, list[_Reading]] = {}
    attempt: list[_Reading] = []
    for piece in f"\n{prompt}".split(f"\n{opening[0]}")[1:]:
        head, _, rest = piece.partition(" ")
        match head:
            case "-":
                number, _, tools[number] = rest.partition(" ")
            case "only":
                numbers = rest.removeprefix("tools ")
                conversation.tools = [] if numbers == "none" else [tools[number] for number in numbers.split(", ")]
            case "block":
                number, _, blocks[number] = rest.partition(": ")
            case "start":
                if rest != _OF_ALL:
                    conversation = starts[rest] = _Reading()
            case "goes":
                conversation.events += starts[rest.removeprefix("on from start ")].events
            case "trajectory":
                conversation = _Reading()
                attempt = attempts[rest] = [conversation]
            case "conversation":
                conversation = _Reading()
                attempt.append(conversation)
            case "tools" | "end" | "note:":
                pass
            case "call":
                name, reference, arguments = rest.partition(_REFERENCE)
                if not reference or "(" in name:
                    name, _, arguments = rest.partition("(")
                    arguments = arguments[:-1]
                else:
                    arguments = blocks[arguments]
                conversation.events.append(ToolCallEvent(name, arguments))
            case "result" | "result:":
                call = conversation.events.pop()
                conversation.events.append(replace(call, result=_text_after(head, rest, blocks)))
            case "image" | "unseen:":
                sent = Image(rest.partition(": ")[2], "") if head == "image" else Unseen(rest)
                event = conversation.events.pop()
                conversation.events.append(replace(event, attachments=(*event.attachments, sent)))
            case role:
                conversation.events.append(TextEvent(role.removesuffix(":"), _text_after(head, rest, blocks)))
    return {label: _full(common, tuple(tools.values()), *readings) for label, readings in attempts.items()}


def _text_after(head: str, rest: str, blocks: Mapping[str, str]) -> str:
    """The text of a line; after a head without a colon it is a reference to a block."""
    return rest if head.endswith(":") else blocks[rest.removeprefix(_REFERENCE.lstrip())]


def _full(common: _Reading, tools: tuple[str, ...], main: _Reading, *others: _Reading) -> tuple[Conversation, ...]:
    main.events = common.events + main.events
    return tuple(
        Conversation(tuple(each.events), tools if each.tools is None else tuple(each.tools)) for each in (main, *others)
    )
