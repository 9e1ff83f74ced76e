"""Truncates a canonical group to a number of tokens, by the same rule for all members.

Texts longer than a common length lose their middle; if that is not enough, conversations lose the middle of their
events. The greatest length that fits is searched for, so no text is truncated more than necessary.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.prompt.canonical_group import CanonicalGroup, Conversation
from gavel.judge.prompt.provider_formats import Event, TextEvent, event_texts, images_of, with_texts
from gavel.llm.prompt_cut import PIECE, count_tokens, encode
from gavel.llm.providers import cl100k
from gavel.llm.types import IMAGE_TOKENS

MIN_READABLE_TOKENS = 64
"""Texts are cut shorter than this only when fewer members or events per prompt do not help."""
_MIN_TEXT_TOKENS, _MIN_EVENTS = 16, 2
_OMISSION_MARK_TOKENS, _LINE_TOKENS = 12, 12
"""About the tokens of an omission mark, and of the structure of a line."""
_UNUSED_SHARE = 50
"""One part in this many of the limit may stay unused: to use it, the whole prompt would be counted many times more."""


_MAX_TOKENS_PER_CHARACTER = 4
"""A character has at most four bytes, and a token at least one."""


class TextTruncator:
    """Truncates the same texts to several lengths; encodes each part once, and of a long text only what is kept."""

    def __init__(self) -> None:
        self._tokens: dict[str, array[int]] = {}

    def truncate(self, text: str, limit: int) -> str:
        """A text of more than `limit` tokens without its middle: `limit` tokens and a mark that tells how long the rest
        is."""
        if _MAX_TOKENS_PER_CHARACTER * len(text) <= limit:
            return text
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        head = self._until(pieces, limit - limit // 2)
        tail = self._until(reversed(pieces), limit // 2)
        if len(head) + len(tail) >= len(pieces) and sum(len(self._encoded(piece)) for piece in pieces) <= limit:
            return text
        last = list(chain.from_iterable(reversed(tail)))
        begin = _decode(list(chain.from_iterable(head))[: limit - limit // 2])
        end = _decode(last[len(last) - limit // 2 :])
        return f"{begin} {omission_mark(len(text) - len(begin) - len(end))} {end}"

    def _until(self, pieces: Iterable[str], count: int) -> "list[array[int]]":
        """The tokens of the first pieces, until there are `count`."""
        found: list[array[int]] = []
        for piece in pieces:
            if sum(map(len, found)) >= count:
                break
            found.append(self._encoded(piece))
        return found

    def _encoded(self, piece: str) -> "array[int]":
        if piece not in self._tokens:
            self._tokens[piece] = array("I", encode(piece))
        return self._tokens[piece]


def omission_mark(characters: int) -> str:
    return f"[… {characters:,} characters left out …]"


def _decode(tokens: Sequence[int]) -> str:
    """Drops a character of which only some bytes are there."""
    return cl100k().decode(list(tokens), errors="ignore")


def truncate_group(
    group: CanonicalGroup, limit: int, size: Callable[[CanonicalGroup], int], truncator: TextTruncator | None = None
) -> CanonicalGroup:
    """The group, which is too long, with as much text as fits: `size` of the result, in tokens, is at most `limit`.

    `truncator`: one that has encoded texts of the group before. Raises `ContextTooSmallError`.
    """
    truncator = truncator or TextTruncator()
    conversations = (each.events for member in group.members for each in member.conversations)
    most_events = max(map(len, (group.shared, *conversations)))

    def shortened(length: int, events: int) -> CanonicalGroup:
        return _shortened(group, length, events, truncator)

    searches: list[tuple[Callable[[int], CanonicalGroup], int, int]] = [
        (lambda length: shortened(length, most_events), MIN_READABLE_TOKENS, limit),
        (lambda events: shortened(MIN_READABLE_TOKENS, events), _MIN_EVENTS, most_events),
        (lambda length: shortened(length, _MIN_EVENTS), _MIN_TEXT_TOKENS, MIN_READABLE_TOKENS),
    ]
    for make, low, high in searches:
        if fitting := _greatest(make, low, high, limit, size):
            return fitting
    needed = size(shortened(_MIN_TEXT_TOKENS, _MIN_EVENTS))
    raise ContextTooSmallError(
        f"the judge has room for a prompt of {max(limit, 0):,} tokens, and the shortest one takes {needed:,}.",
        "Take a judge model with a longer context, or shorter instructions and fewer tools.",
    )


def max_members_shown(group: CanonicalGroup, limit: int) -> int:
    """Number of members, even the longest, that fit in `limit` tokens at `MIN_READABLE_TOKENS` a text; at least 2."""

    longest = MIN_READABLE_TOKENS + _OMISSION_MARK_TOKENS

    def tokens(text: str) -> int:
        return min(count_tokens(text, stop_at=longest), longest)

    def short(events: Sequence[Event]) -> int:
        texts = sum(tokens(text) + _LINE_TOKENS for text in event_texts(events))
        return texts + IMAGE_TOKENS * len(images_of(events))

    totals = [sum(short(conversation.events) for conversation in member.conversations) for member in group.members]
    left = limit - short(group.shared) - sum(map(tokens, group.tools))
    return max(2, sum(total <= left for total in accumulate(sorted(totals, reverse=True))))


def _greatest(
    make: Callable[[int], CanonicalGroup], low: int, high: int, limit: int, size: Callable[[CanonicalGroup], int]
) -> CanonicalGroup | None:
    """`make(number)` for the greatest number in [low, high] that fits, or for one that almost reaches the limit.

    To count a size, all text is encoded, so sizes far above `limit` are avoided: the number is at most doubled.
    """
    if low > high or (taken := size(best := make(low))) > limit:
        return None
    beyond = high + 1
    while beyond - low > 1 and taken < limit - limit // _UNUSED_SHARE:
        number = min(2 * low, (low + beyond) // 2)
        if (found := size(made := make(number))) <= limit:
            best, low, taken = made, number, found
        else:
            beyond = number
    return best


def _shortened(group: CanonicalGroup, length: int, count: int, truncator: TextTruncator) -> CanonicalGroup:
    """The group with only the first and last events of every conversation, `count` in all, and with every text
    truncated to `length` tokens."""

    def cut(text: str) -> str:
        return truncator.truncate(text, length)

    def events(of: tuple[Event, ...]) -> tuple[Event, ...]:
        if len(of) > count:
            end = len(of) - (count - count // 2)
            mark = omission_mark(sum(map(len, event_texts(of[count // 2 : end]))))
            of = (*of[: count // 2], TextEvent("other", mark), *of[end:])
        return tuple(with_texts(event, cut) for event in of)

    def conversation(of: Conversation) -> Conversation:
        return Conversation(events(of.events), None if of.tools is None else tuple(map(cut, of.tools)), of.agent)

    members = tuple(replace(m, conversations=tuple(map(conversation, m.conversations))) for m in group.members)
    return CanonicalGroup(members, events(group.shared), tuple(map(cut, group.tools)))
