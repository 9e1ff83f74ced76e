"""Content that several conversations of one prompt share, to be shown once: common prefixes and repeated long texts.

    conversations (a, b), (a, b, c), (a, c)  ->  prefixes 0: (a,), 1: prefix 0 + (b,)
                                                 suffixes: 1 + (), 1 + (c,), 0 + (c,)

Lossless: the events of a prefix (after those of its parent prefixes), then the suffix, are the conversation.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gavel.judge.prompt.canonical_group import Event, event_texts

MIN_SHARED_CHARACTERS = 100
"""Shorter shared content is repeated: a reference would not save tokens."""


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
    """The tree of common prefixes; those of fewer than `MIN_SHARED_CHARACTERS` characters are not split off."""
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
