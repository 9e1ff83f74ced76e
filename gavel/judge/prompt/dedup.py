"""What several conversations of one prompt have in common: beginnings and long texts, so that each is shown once.

Nothing is left out: a conversation is its start (with that start's own start, and so on) and the events behind it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gavel.judge.prompt.canonical import Event, texts_of

LEAST = 100
"""Characters that are worth a reference."""


@dataclass(frozen=True, slots=True)
class Start:
    """With what two or more conversations begin."""

    parent: int | None
    """Index of the start that this one goes on from."""
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    starts: tuple[Start, ...]
    """A start stands behind its parent."""
    start_of: tuple[int | None, ...]
    """For each conversation the index of the start that it goes on from."""
    rests: tuple[tuple[Event, ...], ...]
    """For each conversation the events behind its start."""


def common_starts(conversations: Sequence[tuple[Event, ...]]) -> Sharing:
    """The tree of common beginnings; one of fewer than `LEAST` characters is left where it is."""
    starts: list[Start] = []
    start_of: list[int | None] = [None] * len(conversations)
    covered = [0] * len(conversations)

    def divide(members: Iterable[int], begin: int, depth: int, parent: int | None) -> None:
        """`members` are alike up to `depth`, and shown up to `begin`."""
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
            if sum(len(text) for text in texts_of(first[begin:end])) < LEAST:
                divide(branch, begin, end, parent)
                continue
            starts.append(Start(parent, first[begin:end]))
            for member in branch:
                start_of[member], covered[member] = len(starts) - 1, end
            divide(branch, end, end, len(starts) - 1)

    divide(range(len(conversations)), 0, 0, None)
    rests = tuple(events[skip:] for events, skip in zip(conversations, covered, strict=True))
    return Sharing(tuple(starts), tuple(start_of), rests)


def repeated_texts(events: Iterable[Event]) -> Mapping[str, int]:
    """The long texts that occur more than once, each with its number, from 1, in order of appearance."""
    counts = Counter(text for text in texts_of(events) if len(text) >= LEAST)
    repeated = [text for text, count in counts.items() if count > 1]
    return {text: number for number, text in enumerate(repeated, start=1)}
