"""Canonical group -> text for a judge that no trajectory can forge, and back.

Every line of structure begins with the fence: the reserved character and a random code. The reserved character
cannot occur in trajectory text (it is replaced), and code and labels are drawn so that they do not occur in it
either. So no text closes its fence, opens another, speaks as another role or names another member:
`read_transcripts` gives back exactly what `render_transcripts` was given, whatever the text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

from judge.canonical import Called, CanonicalGroup, Conversation, Event, Said
from judge.gate import ADDRESSES_JUDGE, CONTENTLESS, EMPTY, TOOL_ADDRESSES_JUDGE
from judge.sanitise import RESERVED, revealed, sanitise

_LETTERS = "BCDFGHJKMNPQRSTVWXZ"
_DIGITS = "3479"

_NOTES = {
    EMPTY: "the agent said and did nothing",
    CONTENTLESS: "it says nothing but an opener or punctuation",
    ADDRESSES_JUDGE: "its text addresses the judge",
    TOOL_ADDRESSES_JUDGE: "text that a tool returned addresses the judge",
}
"""What the judge is told of each flag."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a prompt is fenced and labelled with; `labels[i]` names member i of the canonical group."""

    code: str
    labels: tuple[str, ...]

    @property
    def fence(self) -> str:
        return f"{RESERVED}{self.code} "


def draw_marks(group: CanonicalGroup, random: Random) -> Marks:
    """A code and a label for each member, all different, none of which occurs in the group's text, hidden or not."""
    haystack = _haystack(group)
    drawn: list[str] = []
    tries = 0
    while len(drawn) <= len(group.members):
        size = 4 + tries // 100
        tries += 1
        mark = random.choice(_LETTERS) + "".join(random.choices(_LETTERS + _DIGITS, k=size - 1))
        if mark not in drawn and mark.casefold() not in haystack:
            drawn.append(mark)
    code, *labels = drawn
    return Marks(code.lower(), tuple(labels))


@lru_cache(maxsize=1)
def _haystack(group: CanonicalGroup) -> str:
    """The group's text raw and as it is shown, in which no mark may occur; one group's marks are drawn in a row."""
    return "\n".join(revealed(version) for text in group.texts() for version in {text, sanitise(text)})


def render_transcripts(group: CanonicalGroup, order: Sequence[int], marks: Marks) -> str:
    """The group's text with its members in `order` (indices into `group.members`)."""
    lines: list[str] = []
    if group.tools:
        lines += ["tools", *_list(group.tools)]
    if group.shared:
        lines += ["start of every trajectory", *_events(group.shared)]
    for index in order:
        lines.append(f"trajectory {marks.labels[index]}")
        lines += [f"note: {_NOTES[flag]}" for flag in group.members[index].flags]
        for number, conversation in enumerate(group.members[index].conversations, start=1):
            if number > 1:
                lines.append(f"conversation {number}")
            if conversation.tools is not None:
                lines += ["tools", *_list(conversation.tools)]
            lines += _events(conversation.events)
        lines.append(f"end of {marks.labels[index]}")
    return "\n".join(marks.fence + line for line in lines)


def _list(tools: Sequence[str]) -> list[str]:
    return [f"- {sanitise(tool)}" for tool in tools]


def _events(events: Sequence[Event]) -> list[str]:
    lines: list[str] = []
    for event in events:
        match event:
            case Said(role, text):
                lines.append(f"{role}: {sanitise(text)}")
            case Called(name, arguments, result):
                lines.append(f"call {_name(name)}({sanitise(arguments)})")
                if result is not None:
                    lines.append(f"result: {sanitise(result)}")
    return lines


def _name(tool: str) -> str:
    return re.sub(r"[^\w.:/-]", "_", sanitise(tool)) or "_"


@dataclass(slots=True)
class _Reading:
    """A conversation whose lines are still being read."""

    events: list[Event] = field(default_factory=list)
    tools: list[str] | None = None


def read_transcripts(prompt: str) -> dict[str, tuple[Conversation, ...]]:
    """Each attempt in full (what is shown once for all included) by its label, in the order shown."""
    start = re.search(rf"^{RESERVED}\w+ ", prompt, re.MULTILINE)
    if start is None:
        return {}
    common = conversation = _Reading()
    attempts: dict[str, list[_Reading]] = {}
    attempt: list[_Reading] = []
    for piece in f"\n{prompt}".split(f"\n{start[0]}")[1:]:
        head, _, rest = piece.partition(" ")
        match head:
            case "tools":
                conversation.tools = []
            case "-":
                conversation.tools = [*(conversation.tools or ()), rest]
            case "start" | "end" | "note:":
                pass
            case "trajectory":
                conversation = _Reading()
                attempt = attempts[rest] = [conversation]
            case "conversation":
                conversation = _Reading()
                attempt.append(conversation)
            case "call":
                name, _, arguments = rest.partition("(")
                conversation.events.append(Called(name, arguments[:-1]))
            case "result:":
                call = conversation.events.pop()
                conversation.events.append(replace(call, result=rest))
            case role:
                conversation.events.append(Said(role.removesuffix(":"), rest))
    return {label: _full(common, *readings) for label, readings in attempts.items()}


def _full(common: _Reading, main: _Reading, *others: _Reading) -> tuple[Conversation, ...]:
    main.events = common.events + main.events
    return tuple(
        Conversation(tuple(each.events), tuple(common.tools or () if each.tools is None else each.tools))
        for each in (main, *others)
    )
