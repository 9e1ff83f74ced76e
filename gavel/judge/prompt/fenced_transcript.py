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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from gavel.judge.prompt.canonical_group import CanonicalGroup, Conversation, has_reference
from gavel.judge.prompt.flags import ADDRESSES_JUDGE, CONTENTLESS, EMPTY, TOOL_ADDRESSES_JUDGE, UNSEEN
from gavel.judge.prompt.provider_formats import (
    Event,
    Image,
    TextEvent,
    ToolCallEvent,
    Unseen,
    event_texts,
    turn_starts,
)
from gavel.judge.prompt.sanitize import RESERVED, joined_texts, normalize_for_matching, sanitize

MIN_SHARED_CHARACTERS = 100
"""Shorter shared content is repeated: a reference would not save tokens."""
_LETTERS = "BCDFGHJKMNPQRSTVWXZ"
_DIGITS = "3479"
_OF_ALL = "of every trajectory"
_REFERENCE = " = block "
_CHANGED = re.compile(r"(\d+) (?:but for lines (\d+)-(\d+)|with more after line (\d+))")
_MIN_CHANGED_CHARACTERS = 400
"""Shorter texts are shown in full: lines that are named by numbers take more effort to read."""
_MAX_CHANGED_SHARE = 0.4
"""Largest share of a text that a change of it may be, the old lines and the new ones together."""
_MAX_COMPARED = 4
"""Blocks that a text is compared with: those that begin or end with the same line."""
_SAME_TURN = "same turn: "

_NOTES = {
    EMPTY: "the agent said and did nothing",
    CONTENTLESS: "it says nothing but an opener or punctuation",
    ADDRESSES_JUDGE: "its text addresses the judge",
    TOOL_ADDRESSES_JUDGE: "text that a tool returned addresses the judge",
    UNSEEN: "some of its content is not shown",
}
"""Flag -> its note in the prompt."""


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
        for text in joined_texts(group.texts):
            haystacks = {normalize_for_matching(version) for version in {text, sanitize(text)}}
            drawn = [marker for marker in drawn if not any(marker.casefold() in text for text in haystacks)]
        markers += drawn
    code, *labels = markers
    return PromptMarkers(code.lower(), tuple(labels))


_Events = tuple[Event, ...]
_Key = tuple[int, int]
"""A member, and the number of its conversation."""
_Part = tuple[int | None, _Events]
"""The index of the prefix that something continues, and the events behind it."""


def _shared_prefixes(conversations: Mapping[_Key, _Events]) -> tuple[list[_Part], dict[_Key, _Part]]:
    """The beginnings that two or more have in common, parents first, and what each conversation is with its longest.

    conversations (a, b), (a, b, c), (a, c)  ->  prefixes 0: (a,), 1: prefix 0 + (b,)
                                                 the rest: 1 + (), 1 + (c,), 0 + (c,)

    Prefixes of fewer than `MIN_SHARED_CHARACTERS` characters are not split off.
    """
    prefixes: list[_Part] = []
    rest: dict[_Key, _Part] = {key: (None, events) for key, events in conversations.items()}

    def divide(keys: Iterable[_Key], begin: int, depth: int, parent: int | None) -> None:
        """Splits conversations, equal in their first `depth` events, of which `begin` are in prefixes already."""
        branches: dict[Event, list[_Key]] = {}
        for key in keys:
            if len(conversations[key]) > depth:
                branches.setdefault(conversations[key][depth], []).append(key)
        for branch in branches.values():
            if len(branch) == 1:
                continue
            first = conversations[branch[0]]
            end = depth + 1
            while end < len(first) and all(conversations[k][end : end + 1] == first[end : end + 1] for k in branch):
                end += 1
            if sum(len(text) for text in event_texts(first[begin:end])) < MIN_SHARED_CHARACTERS:
                divide(branch, begin, end, parent)
                continue
            prefixes.append((parent, first[begin:end]))
            rest.update((key, (len(prefixes) - 1, conversations[key][end:])) for key in branch)
            divide(branch, end, end, len(prefixes) - 1)

    divide(conversations, 0, 0, None)
    return prefixes, rest


class _Blocks:
    """Numbered texts. Others refer to one of them, whole or but for one stretch of lines."""

    def __init__(self, numbers: Mapping[str, int], safe: Callable[[str], str]) -> None:
        self._numbers = numbers
        self._safe = safe
        self._lines: dict[int, list[str]] = {}
        self._by_line: dict[str, list[int]] = {}
        for text, number in numbers.items():
            if len(shown := safe(text)) >= _MIN_CHANGED_CHARACTERS // 2:
                self._lines[number] = lines = shown.split("\n")
                for line in _ends(lines):
                    self._by_line.setdefault(line, []).append(number)

    def shown(self, head: str, text: str, before: str, after: str = "") -> list[str]:
        """The lines that show a text behind a head."""
        if text in self._numbers:
            return [f"{head}{_REFERENCE}{self._numbers[text]}"]
        safe = self._safe(text)
        return self._changed(head, safe) or [f"{head}{before}{safe}{after}"]

    def _changed(self, head: str, text: str) -> list[str]:
        """The smallest change that makes the text of a block; empty if none is small enough to be worth its while."""
        if len(text) < _MIN_CHANGED_CHARACTERS or not self._lines:
            return []
        lines = text.split("\n")
        numbers = dict.fromkeys(number for line in _ends(lines) for number in self._by_line.get(line, ()))
        best, smallest = list[str](), _MAX_CHANGED_SHARE * len(text)
        for number in list(numbers)[:_MAX_COMPARED]:
            block = self._lines[number]
            kept = _same_beginning(block, lines)
            end = _same_beginning(block[kept:][::-1], lines[kept:][::-1])
            old, new = block[kept : len(block) - end], lines[kept : len(lines) - end]
            stretches = [(name, "\n".join(each)) for name, each in (("was", old), ("now", new)) if each]
            if (size := sum(len(stretch) for _, stretch in stretches)) > smallest or (best and size == smallest):
                continue
            where = f"but for lines {kept + 1}-{kept + len(old)}" if old else f"with more after line {kept}"
            best, smallest = [f"{head}{_REFERENCE}{number} {where}"], size
            best += [f"{name}: {stretch}" for name, stretch in stretches]
        return best


def _ends(lines: Sequence[str]) -> Iterable[str]:
    """The first line, and the last one that is not empty."""
    return dict.fromkeys((lines[0], next((line for line in reversed(lines) if line), "")))


def _same_beginning(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of lines that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class TranscriptParts:
    """The text of a call in four parts, of which the first ones are the same in other calls on the group."""

    of_group: str
    """The same in every call: the tools, what every trajectory begins with, and the texts that all members contain."""
    of_members: str
    """The same in every call that shows these members: what some of them share."""
    members: Mapping[int, str]
    """Member -> its text."""
    end: str

    def joined(self, order: Sequence[int]) -> str:
        """The text with the members in `order`."""
        parts = [self.of_group, self.of_members, *(self.members[member] for member in order), self.end]
        return "\n".join(filter(None, parts))


class Transcripts:
    """The text of a group's calls; each text of the group is made safe once, whatever the number of calls."""

    def __init__(self, group: CanonicalGroup, markers: PromptMarkers, *, turns: bool = False) -> None:
        """`turns`: a line with its number stands before each turn of the main conversations."""
        self.group = group
        self.markers = markers
        self._turns = turns
        self._safe: dict[str, str] = {}
        self._last: tuple[tuple[int, ...], TranscriptParts] | None = None
        self._everyone = tuple(range(len(group.members)))
        self._sharing_of_all = self._sharing(self._everyone)
        in_each = [{*event_texts(e for each in member.conversations for e in each.events)} for member in group.members]
        everywhere = {*event_texts(group.shared), *(set[str].intersection(*in_each) if len(in_each) > 1 else ())}
        self._common = [text for text in self._sharing_of_all[-1] if text in everywhere]

    def parts(self, shown: Collection[int]) -> TranscriptParts:
        """The parts of a call that shows these members (indices into `group.members`)."""
        key = tuple(sorted(shown))
        if self._last is None or self._last[0] != key:
            self._last = key, self._parts(key)
        return self._last[1]

    def _sharing(self, shown: Iterable[int]) -> tuple[list[_Part], dict[_Key, _Part], list[str]]:
        """The prefixes of the members' conversations, what follows them, and the long texts that are repeated."""
        prefixes, rest = _shared_prefixes(
            {
                (member, number): conversation.events
                for member in shown
                for number, conversation in enumerate(self.group.members[member].conversations)
            }
        )
        told = chain(self.group.shared, *(events for _, events in (*prefixes, *rest.values())))
        counts = Counter(text for text in event_texts(told) if len(text) >= MIN_SHARED_CHARACTERS)
        return prefixes, rest, [text for text, count in counts.items() if count > 1]

    def _parts(self, shown: tuple[int, ...]) -> TranscriptParts:
        group = self.group
        prefixes, rest, repeated = self._sharing_of_all if shown == self._everyone else self._sharing(shown)
        numbers = {text: number for number, text in enumerate(dict.fromkeys([*self._common, *repeated]), start=1)}
        block_lines = [f"block {number}: {self._sanitized(text)}" for text, number in numbers.items()]
        common = _Blocks({text: numbers[text] for text in self._common}, self._sanitized)
        blocks = _Blocks(numbers, self._sanitized)

        of_group: list[str] = []
        if group.tools:
            tools = map(self._sanitized, group.tools)
            of_group += ["tools", *(f"- {number} {tool}" for number, tool in enumerate(tools, start=1))]
        of_group += block_lines[: len(self._common)]
        of_group += self._events(group.shared[: has_reference(group)], common)
        if shared := group.shared[has_reference(group) :]:
            of_group += [f"start {_OF_ALL}", *self._events(shared, common, ())]

        of_members = block_lines[len(self._common) :]
        until: list[_Events] = []
        """All that stands before the end of each prefix."""
        for number, (parent, events) in enumerate(prefixes, start=1):
            before = group.shared if parent is None else until[parent]
            of_members += [f"start {number}", *self._going_on(parent, events, blocks, before)]
            until.append((*before, *events))

        members: dict[int, str] = {}
        for member in shown:
            lines = [f"trajectory {self.markers.labels[member]}"]
            lines += [f"note: {_NOTES[flag]}" for flag in group.members[member].flags]
            for number, conversation in enumerate(group.members[member].conversations):
                if number > 0:
                    lines.append(f"conversation {number + 1}")
                if conversation.agent:
                    lines.append(f"agent: {self._sanitized(conversation.agent)}")
                if (tools := conversation.tools) is not None:
                    lines.append(f"only tools {', '.join(str(group.tools.index(t) + 1) for t in tools) or 'none'}")
                start, events = rest[member, number]
                before = None if number else group.shared if start is None else until[start]
                lines += self._going_on(start, events, blocks, before)
            members[member] = self._fenced(lines)
        return TranscriptParts(self._fenced(of_group), self._fenced(of_members), members, self._fenced(["end of all"]))

    def _fenced(self, lines: Sequence[str]) -> str:
        return "\n".join(self.markers.fence + line for line in lines)

    def _sanitized(self, text: str) -> str:
        if text not in self._safe:
            self._safe[text] = sanitize(text)
        return self._safe[text]

    def _going_on(self, start: int | None, events: _Events, blocks: _Blocks, before: _Events | None) -> list[str]:
        return [*([] if start is None else [f"goes on from start {start + 1}"]), *self._events(events, blocks, before)]

    def _events(self, events: _Events, blocks: _Blocks, before: _Events | None = None) -> list[str]:
        """The lines of some events; `before` is what stands before them, None where turns have no numbers."""
        lines: list[str] = []
        starts = turn_starts((*before, *events)) if self._turns and before is not None else []
        turns = {at - len(before or ()): number for number, at in enumerate(starts, start=1)}
        for at, event in enumerate(events):
            lines += [f"turn {turns[at]}"] if at in turns else []
            match event:
                case TextEvent(role, text):
                    lines += blocks.shown(role, text, ": ")
                case ToolCallEvent(name, arguments, result, _, same_turn):
                    shown = re.sub(r"[^\w.:/-]", "_", sanitize(name)) or "_"
                    head = f"{_SAME_TURN if same_turn else ''}call {shown}"
                    lines += blocks.shown(head, arguments, "(", ")")
                    if result is not None:
                        lines += blocks.shown("result", result, ": ")
            for each in event.attachments:
                is_sent = isinstance(each, Image)
                lines.append(f"image {self.group.images[each]}: {each.tag}" if is_sent else f"unseen: {each.tag}")
        return lines


def render_transcripts(group: CanonicalGroup, order: Sequence[int], markers: PromptMarkers) -> str:
    """The group's text with its members in `order` (indices into `group.members`).

    Prefixes and long texts that the members share are shown once and referred to by number.
    """
    return Transcripts(group, markers).parts(order).joined(order)


@dataclass(slots=True)
class _Reading:
    """A conversation whose lines are being read."""

    events: list[Event] = field(default_factory=list[Event])
    tools: list[str] | None = None
    agent: str = ""


def read_transcripts(prompt: str) -> dict[str, tuple[Conversation, ...]]:
    """Each attempt by its label, in the order shown, in full: shared content is inserted where it belongs."""
    return _read(prompt)[0]


def marks_turns(prompt: str) -> bool:
    """Whether turns have numbers, as where their states are asked for."""
    return re.search(rf"^{RESERVED}\w+ turn 1$", prompt, re.MULTILINE) is not None


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
            case "tools" | "end" | "note:" | "was:" | "now:" | "turn":
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
    found: dict[str, tuple[Conversation, ...]] = {}
    for label, (main, *others) in attempts.items():
        main.events = common.events + main.events
        found[label] = tuple(
            Conversation(tuple(each.events), tuple(tools.values() if each.tools is None else each.tools), each.agent)
            for each in (main, *others)
        )
    return found, told


def _text_after(head: str, rest: str, blocks: Mapping[str, str], following: Sequence[str]) -> str:
    """The text of a line; after a head without a colon it is a reference to a block."""
    return rest if head.endswith(":") else _referred(rest.removeprefix(_REFERENCE.lstrip()), blocks, following)


def _referred(name: str, blocks: Mapping[str, str], following: Sequence[str]) -> str:
    """The text of a block, or of one with a change, which the lines that follow tell."""
    if (change := _CHANGED.fullmatch(name)) is None:
        return blocks[name]
    number, first, last, after = change.groups()
    start, end = (int(after), int(after)) if after else (int(first) - 1, int(last))
    parts = (line.partition(" ") for line in following[: 1 if after else 2])
    told = {head: stretch for head, _, stretch in parts}
    lines = blocks[number].split("\n")
    lines[start:end] = told["now:"].split("\n") if "now:" in told else []
    return "\n".join(lines)
