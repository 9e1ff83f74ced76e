"""The events of a conversation as a judge is shown them: texts, tool calls, and what stands beside them.

An attachment that is not text leaves its tag in the text, `[image_url 3f2a…]`, where it stood: so its place is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the judge is sent."""

    tag: str
    """`image_url` and a hash of its bytes, or of its address."""
    url: str
    """A data URL, or an address that the server of the judge model fetches."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Content that the judge is not shown: audio, a file, an unknown block, an image for a judge that sees none."""

    tag: str
    """Its type and a hash: attempts with different content stay different."""


Attachment = Image | Unseen


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A message. `role` is one of `ROLES`, or "other"."""

    role: str
    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A tool call by the agent, with its result (None = there is none)."""

    name: str
    arguments: str
    result: str | None = None
    attachments: tuple[Attachment, ...] = ()
    """Those of the arguments, then those of the result."""
    same_turn: bool = False
    """Whether it was issued beside a call before it, whose result the agent had not seen."""


Event = TextEvent | ToolCallEvent


def event_texts(events: Iterable[Event]) -> Iterable[str]:
    """All text of the events, in order. The tags of attachments are in it."""
    for event in events:
        match event:
            case TextEvent(_, text):
                yield text
            case ToolCallEvent(name, arguments, result):
                yield from (name, arguments, result or "")


def unseen_content(events: Iterable[Event]) -> Sequence[Unseen]:
    """What the judge is not shown of the events, in order."""
    return [each for event in events for each in event.attachments if isinstance(each, Unseen)]


def images_of(events: Iterable[Event]) -> Sequence[Image]:
    """The images of the events, in order."""
    return [each for event in events for each in event.attachments if isinstance(each, Image)]
