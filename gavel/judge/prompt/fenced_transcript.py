"""Canonical group -> prompt text whose structure no trajectory can forge, and back.

    ¦k3v trajectory W7QX
    ¦k3v assistant: I look the order up.
    ¦k3v call get_order({"id":"7890"})
    ¦k3v result: {"days":10}

Every structural line begins with the fence: the reserved character and a random code. The reserved character is
replaced in trajectory text, and code and labels are chosen so that they do not occur in it. So text cannot end its
line, speak as another role or name another member: `read_transcripts` inverts `render_transcripts` for any text.

A server's prompt cache reuses the beginning that requests have in common, so all calls on a group have one code and one
set of labels, and what they share comes first: what every call shows, what every call with these members shows, and
then the members in the call's order. A text that is like one of these but for some lines, such as a file that is read
again after an edit, is shown by its change:

    ¦k3v result = block 2 but for lines 17-17
    ¦k3v was:     return None
    ¦k3v now:     return found
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from gavel.judge.prompt.canonical_group import (
    CanonicalGroup,
    Conversation,
    Event,
    TextEvent,
    ToolCallEvent,
    event_texts,
    has_reference,
)
from gavel.judge.prompt.changed_text import Blocks, apply_change, read_name
from gavel.judge.prompt.flags import ADDRESSES_JUDGE, CONTENTLESS, EMPTY, TOOL_ADDRESSES_JUDGE, UNSEEN
from gavel.judge.prompt.provider_formats import Attachment, Image, Unseen
from gavel.judge.prompt.sanitize import RESERVED, joined_texts, normalize_for_matching, sanitize

MIN_SHARED_CHARACTERS = 100
"""Shorter shared content is repeated: a reference would not save tokens."""
_LETTERS = "BCDFGHJKMNPQRSTVWXZ"
_DIGITS = "3479"
_OF_ALL = "of every trajectory"
_REFERENCE = " = block "
_SAME_TURN = "same turn: "

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
    markers: list[str] = []
    tries = 0
    while (missing := len(group.members) + 1 - len(markers)) > 0:
        drawn: list[str] = []
        while len(drawn) < missing:
            size = 4 + tries // 100
            tries += 1
            marker = random.choice(_LETTERS) + "".join(random.choices(_LETTERS + _DIGITS, k=size - 1))
            if marker not in markers and marker not in drawn:
                drawn.append(marker)
        markers += _without_occurring(drawn, group)
    code, *labels = markers
    return PromptMarkers(code.lower(), tuple(labels))


def _without_occurring(markers: list[str], group: CanonicalGroup) -> list[str]:
    """The markers that do not occur in the group's text, raw or sanitized."""
    for text in joined_texts(group.texts):
        haystacks = {normalize_for_matching(version) for version in {text, sanitize(text)}}
        markers = [marker for marker in markers if not any(marker.casefold() in text for text in haystacks)]
    return markers


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Events with which two or more conversations begin."""

    parent: int | None
    """Index of the prefix that this one continues."""
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    prefixes: tuple[SharedPrefix, ...]
    """A parent comes before its children."""
    prefix_of: tuple[int | None, ...]
    """For each conversation, the index of the longest prefix that it begins with."""
    suffixes: tuple[tuple[Event, ...], ...]
    """For each conversation, the events after its prefix."""


def find_shared_prefixes(conversations: Sequence[tuple[Event, ...]]) -> PrefixTree:
    """The tree of common prefixes; those of fewer than `MIN_SHARED_CHARACTERS` characters are not split off.

    conversations (a, b), (a, b, c), (a, c)  ->  prefixes 0: (a,), 1: prefix 0 + (b,)
                                                 suffixes: 1 + (), 1 + (c,), 0 + (c,)
    """
    prefixes: list[SharedPrefix] = []
    prefix_of: list[int | None] = [None] * len(conversations)
    covered = [0] * len(conversations)

    def divide(members: Iterable[int], begin: int, depth: int, parent: int | None) -> None:
        """Splits `members`, equal in their first `depth` events, of which `begin` are in prefixes already."""
        branches: dict[Event, list[int]] = {}
        for member in members:
            if len(conversations[member]) > depth:
                branches.setdefault(conversations[member][depth], []).append(member)
        for branch in branches.values():
            if len(branch) == 1:
                continue
            first = conversations[branch[0]]
            end = depth + 1
            while end < len(first) and all(conversations[m][end : end + 1] == first[end : end + 1] for m in branch):
                end += 1
            if sum(len(text) for text in event_texts(first[begin:end])) < MIN_SHARED_CHARACTERS:
                divide(branch, begin, end, parent)
                continue
            prefixes.append(SharedPrefix(parent, first[begin:end]))
            for member in branch:
                prefix_of[member], covered[member] = len(prefixes) - 1, end
            divide(branch, end, end, len(prefixes) - 1)

    divide(range(len(conversations)), 0, 0, None)
    suffixes = tuple(events[skip:] for events, skip in zip(conversations, covered, strict=True))
    return PrefixTree(tuple(prefixes), tuple(prefix_of), suffixes)


def repeated_texts(events: Iterable[Event]) -> Mapping[str, int]:
    """The long texts that occur more than once, numbered from 1 in order of appearance."""
    counts = Counter(text for text in event_texts(events) if len(text) >= MIN_SHARED_CHARACTERS)
    repeated = [text for text, count in counts.items() if count > 1]
    return {text: number for number, text in enumerate(repeated, start=1)}


@dataclass(frozen=True, slots=True)
class TranscriptParts:
    """The text of a call in four parts, of which the first ones are the same in other calls on the group."""

    of_group: str
    """The same in every call: the tools, what every trajectory begins with, and the texts that all members contain."""
    of_members: str
    """The same in every call that shows these members: what some of them share."""
    members: Mapping[int, str]
    """By member."""
    end: str

    def joined(self, order: Sequence[int]) -> str:
        """The text with the members in `order`."""
        parts = [self.of_group, self.of_members, *(self.members[member] for member in order), self.end]
        return "\n".join(filter(None, parts))


class Transcripts:
    """The text of a group's calls; each text of the group is made safe once, whatever the number of calls."""

    def __init__(self, group: CanonicalGroup, markers: PromptMarkers) -> None:
        self.group = group
        self.markers = markers
        self._safe: dict[str, str] = {}
        self._last: tuple[tuple[int, ...], TranscriptParts] | None = None
        self._whole = tuple(range(len(group.members)))
        self._tree = self._prefix_tree(self._whole)
        tree, _ = self._tree
        events = chain(group.shared, *(prefix.events for prefix in tree.prefixes), *tree.suffixes)
        everywhere = {*event_texts(group.shared), *_texts_of_every_member(group)}
        self._common = [text for text in repeated_texts(events) if text in everywhere]

    def parts(self, shown: Collection[int]) -> TranscriptParts:
        """The parts of a call that shows these members (indices into `group.members`)."""
        key = tuple(sorted(shown))
        if self._last is None or self._last[0] != key:
            self._last = key, self._parts(key)
        return self._last[1]

    def _parts(self, shown: tuple[int, ...]) -> TranscriptParts:
        group, markers = self.group, self.markers
        tree, index_of = self._tree if shown == self._whole else self._prefix_tree(shown)
        events = chain(group.shared, *(prefix.events for prefix in tree.prefixes), *tree.suffixes)
        blocks = {text: number for number, text in enumerate(self._common, start=1)}
        for text in repeated_texts(events):
            blocks.setdefault(text, len(blocks) + 1)
        common, everything = (
            Blocks({self._sanitized(text): number for text, number in list(blocks.items())[:most]})
            for most in (len(self._common), len(blocks))
        )
        block_lines = [f"block {number}: {self._sanitized(text)}" for text, number in blocks.items()]

        of_group: list[str] = []
        if group.tools:
            tools = map(self._sanitized, group.tools)
            of_group += ["tools", *(f"- {number} {tool}" for number, tool in enumerate(tools, start=1))]
        of_group += block_lines[: len(self._common)]
        of_group += self._events(group.shared[: has_reference(group)], blocks, common)
        if shared := group.shared[has_reference(group) :]:
            of_group += [f"start {_OF_ALL}", *self._events(shared, blocks, common)]

        of_members = block_lines[len(self._common) :]
        for number, prefix in enumerate(tree.prefixes, start=1):
            shared = self._events(prefix.events, blocks, everything)
            of_members += [f"start {number}", *_continuation(prefix.parent), *shared]

        members: dict[int, str] = {}
        for member in shown:
            lines = [f"trajectory {markers.labels[member]}"]
            lines += [f"note: {_NOTES[flag]}" for flag in group.members[member].flags]
            for number in _conversation_numbers(group, member):
                if number > 0:
                    lines.append(f"conversation {number + 1}")
                if agent := group.members[member].conversations[number].agent:
                    lines.append(f"agent: {self._sanitized(agent)}")
                tools = group.members[member].conversations[number].tools
                if tools is not None:
                    lines.append(f"only tools {', '.join(str(group.tools.index(t) + 1) for t in tools) or 'none'}")
                n = index_of[member, number]
                lines += [*_continuation(tree.prefix_of[n]), *self._events(tree.suffixes[n], blocks, everything)]
            members[member] = self._fenced(lines)
        return TranscriptParts(self._fenced(of_group), self._fenced(of_members), members, self._fenced(["end of all"]))

    def _prefix_tree(self, shown: Iterable[int]) -> tuple[PrefixTree, dict[tuple[int, int], int]]:
        """The prefixes that the members' conversations share, and the index of each (member, conversation) in it."""
        group = self.group
        pairs = [(member, number) for member in shown for number in _conversation_numbers(group, member)]
        tree = find_shared_prefixes([group.members[member].conversations[number].events for member, number in pairs])
        return tree, {pair: index for index, pair in enumerate(pairs)}

    def _fenced(self, lines: Sequence[str]) -> str:
        return "\n".join(self.markers.fence + line for line in lines)

    def _sanitized(self, text: str) -> str:
        if text not in self._safe:
            self._safe[text] = sanitize(text)
        return self._safe[text]

    def _events(self, events: Sequence[Event], blocks: Mapping[str, int], alike: Blocks) -> list[str]:
        """The lines of events. Texts that are one of `blocks`, or like one of those `alike`, refer to it."""
        lines: list[str] = []
        for event in events:
            match event:
                case TextEvent(role, text):
                    lines += self._text(role, text, blocks, alike, ": ")
                case ToolCallEvent(name, arguments, result, _, same_turn):
                    head = f"{_SAME_TURN if same_turn else ''}call {_name(name)}"
                    lines += self._text(head, arguments, blocks, alike, "(", ")")
                    if result is not None:
                        lines += self._text("result", result, blocks, alike, ": ")
            lines += map(self._attachment, event.attachments)
        return lines

    def _attachment(self, each: Attachment) -> str:
        is_sent = isinstance(each, Image)
        return f"image {self.group.images[each]}: {each.tag}" if is_sent else f"unseen: {each.tag}"

    def _text(
        self, head: str, text: str, blocks: Mapping[str, int], alike: Blocks, before: str, after: str = ""
    ) -> list[str]:
        if text in blocks:
            return [f"{head}{_REFERENCE}{blocks[text]}"]
        safe = self._sanitized(text)
        if (change := alike.find_change(safe)) is None:
            return [f"{head}{before}{safe}{after}"]
        lines = [f"{head}{_REFERENCE}{change.name}"]
        lines += [] if change.old is None else [f"was: {change.old}"]
        lines += [] if change.new is None else [f"now: {change.new}"]
        return lines


def render_transcripts(group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers) -> str:
    """The group's text with its members in `order` (indices into `group.members`).

    Prefixes and long texts that the members share are shown once and referred to by number.
    """
    return Transcripts(group, markers).parts(order).joined(order)


def _texts_of_every_member(group: CanonicalGroup) -> set[str]:
    """The long texts that each of two or more members contains."""
    if len(group.members) < 2:
        return set()
    of_members = (
        {
            text
            for conversation in member.conversations
            for text in event_texts(conversation.events)
            if len(text) >= MIN_SHARED_CHARACTERS
        }
        for member in group.members
    )
    return set[str].intersection(*of_members)


def _conversation_numbers(group: CanonicalGroup, member: int) -> range:
    return range(len(group.members[member].conversations))


def _continuation(start: int | None) -> list[str]:
    return [] if start is None else [f"goes on from start {start + 1}"]


def _name(tool: str) -> str:
    return re.sub(r"[^\w.:/-]", "_", sanitize(tool)) or "_"


@dataclass(slots=True)
class _Reading:
    """A conversation whose lines are being read."""

    events: list[Event] = field(default_factory=list[Event])
    tools: list[str] | None = None
    agent: str = ""


def read_transcripts(prompt: str) -> dict[str, tuple[Conversation, ...]]:
    """Each attempt by its label, in the order shown, in full: shared content is inserted where it belongs."""
    return _read(prompt)[0]


def read_reference(prompt: str) -> str:
    """The reference that a prompt shows beside the attempts; empty without one."""
    return _read(prompt)[1]


def _read(prompt: str) -> tuple[dict[str, tuple[Conversation, ...]], str]:
    opening = re.search(rf"^{RESERVED}\w+ ", prompt, re.MULTILINE)
    if opening is None:
        return {}, ""
    told = ""
    common = conversation = _Reading()
    tools: dict[str, str] = {}
    blocks: dict[str, str] = {}
    starts: dict[str, _Reading] = {}
    attempts: dict[str, list[_Reading]] = {}
    attempt: list[_Reading] = []
    pieces = f"\n{prompt}".split(f"\n{opening[0]}")[1:]
    for index, piece in enumerate(pieces):
        head, _, rest = piece.partition(" ")
        following = pieces[index + 1 : index + 3]
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
            case "agent:":
                conversation.agent = rest
            case "goes":
                conversation.events += starts[rest.removeprefix("on from start ")].events
            case "trajectory":
                conversation = _Reading()
                attempt = attempts[rest] = [conversation]
            case "conversation":
                conversation = _Reading()
                attempt.append(conversation)
            case "tools" | "end" | "note:" | "was:" | "now:":
                pass
            case "reference" | "reference:":
                told = _text_after(head, rest, blocks, following)
            case "call" | "same":
                rest = f"{head} {rest}".removeprefix(_SAME_TURN).removeprefix("call ")
                name, reference, arguments = rest.partition(_REFERENCE)
                if not reference or "(" in name:
                    name, _, arguments = rest.partition("(")
                    arguments = arguments[:-1]
                else:
                    arguments = _referred(arguments, blocks, following)
                conversation.events.append(ToolCallEvent(name, arguments, same_turn=head == "same"))
            case "result" | "result:":
                call = conversation.events.pop()
                conversation.events.append(replace(call, result=_text_after(head, rest, blocks, following)))
            case "image" | "unseen:":
                sent = Image(rest.partition(": ")[2], "") if head == "image" else Unseen(rest)
                event = conversation.events.pop()
                conversation.events.append(replace(event, attachments=(*event.attachments, sent)))
            case role:
                text = _text_after(head, rest, blocks, following)
                conversation.events.append(TextEvent(role.removesuffix(":"), text))
    return {label: _full(common, tuple(tools.values()), *readings) for label, readings in attempts.items()}, told


def _text_after(head: str, rest: str, blocks: Mapping[str, str], following: Sequence[str]) -> str:
    """The text of a line; after a head without a colon it is a reference to a block."""
    return rest if head.endswith(":") else _referred(rest.removeprefix(_REFERENCE.lstrip()), blocks, following)


def _referred(name: str, blocks: Mapping[str, str], following: Sequence[str]) -> str:
    """The text of a block, or of one with a change, which the lines that follow tell."""
    if (change := read_name(name)) is None:
        return blocks[name]
    number, kept, count = change
    new = None
    for line in following:
        head, _, stretch = line.partition(" ")
        if head != "was:":
            new = stretch if head == "now:" else None
            break
    return apply_change(blocks[number], kept, count, new)


def _full(common: _Reading, tools: tuple[str, ...], main: _Reading, *others: _Reading) -> tuple[Conversation, ...]:
    main.events = common.events + main.events
    return tuple(
        Conversation(tuple(each.events), tools if each.tools is None else tuple(each.tools), each.agent)
        for each in (main, *others)
    )
