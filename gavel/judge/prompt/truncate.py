"""Truncates a canonical group to a number of tokens, by the same rule for all members.

Texts longer than a common length lose their middle; if that is not enough, conversations lose the middle of their
events. The greatest length that fits is searched for, so no text is truncated more than necessary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, count

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.prompt.canonical_group import (
    CanonicalGroup,
    Conversation,
    Event,
    TextEvent,
    ToolCallEvent,
    event_texts,
)
from gavel.judge.prompt.events import images_of
from gavel.judge.prompt.token_count import TextTruncator, count_tokens, estimate_tokens, omission_mark
from gavel.llm.types import IMAGE_TOKENS

MIN_READABLE_TOKENS = 64
"""Texts are cut shorter than this only when fewer members or events per prompt do not help."""
_MIN_TEXT_TOKENS, _MIN_EVENTS = 16, 2
_OMISSION_MARK_TOKENS, _LINE_TOKENS = 12, 12
"""About the tokens of an omission mark, and of the structure of a line."""
_UNUSED_SHARE = 50
"""One part in this many of the limit may stay unused: to use it, the whole prompt would be counted many times more."""


def truncate_group(
    group: CanonicalGroup, limit: int, size: Callable[[CanonicalGroup], int], truncator: TextTruncator | None = None
) -> CanonicalGroup:
    """The group, which is too long, with as much text as fits: `size` of the result, in tokens, is at most `limit`.

    `truncator`: one that has encoded texts of the group before. Raises `ContextTooSmallError`.
    """
    truncator = truncator or TextTruncator()
    most_events = _most_events(group)

    def shortened(length: int, events: int) -> CanonicalGroup:
        return _with_texts(_with_events(group, events), length, truncator)

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
    """How many members, even the longest, fit in `limit` tokens with texts of `MIN_READABLE_TOKENS`; at least 2."""

    longest = MIN_READABLE_TOKENS + _OMISSION_MARK_TOKENS

    def tokens(text: str) -> int:
        return min(count_tokens(text, stop_at=longest), longest)

    def short(events: Sequence[Event]) -> int:
        return sum(tokens(text) + _LINE_TOKENS for text in event_texts(events)) + _image_tokens(events)

    totals = [sum(short(conversation.events) for conversation in member.conversations) for member in group.members]
    left = limit - short(group.shared) - sum(map(tokens, group.tools))
    return max(2, sum(total <= left for total in accumulate(sorted(totals, reverse=True))))


def _greatest(
    make: Callable[[int], CanonicalGroup], low: int, high: int, limit: int, size: Callable[[CanonicalGroup], int]
) -> CanonicalGroup | None:
    """`make(number)` for the greatest number in [low, high] that fits, or for one that almost reaches the limit.

    To count a size, all text is encoded, so sizes far above `limit` are avoided: the number is doubled from below until
    it is too great, then interpolated between the two bounds by their sizes, with a bisection every third step.
    """
    if low > high or (taken := size(best := make(low))) > limit:
        return None
    aim = limit - limit // (2 * _UNUSED_SHARE)
    beyond, over = high + 1, 0
    for turn in count():
        if taken >= limit - limit // _UNUSED_SHARE or beyond - low == 1:
            break
        if not over:
            number = min(2 * low, high)
        else:
            share = 0.5 if turn % 3 == 0 else (aim - taken) / (over - taken)
            number = min(max(low + round((beyond - low) * share), low + 1), beyond - 1)
        if (found := size(made := make(number))) <= limit:
            best, low, taken = made, number, found
        else:
            beyond, over = number, found
    return best


def _with_texts(group: CanonicalGroup, length: int, truncator: TextTruncator) -> CanonicalGroup:
    """The group with every text truncated to `length` tokens."""

    def cut(text: str) -> str:
        return truncator.truncate(text, length)

    def event(of: Event) -> Event:
        match of:
            case TextEvent(_, text):
                return replace(of, text=cut(text))
            case ToolCallEvent(name, arguments, result):
                shortened = None if result is None else cut(result)
                return replace(of, name=cut(name), arguments=cut(arguments), result=shortened)

    return _map_group(group, lambda events: tuple(map(event, events)), lambda tools: tuple(map(cut, tools)))


def _with_events(group: CanonicalGroup, count: int) -> CanonicalGroup:
    """The group with only the first and last events of every conversation, `count` in all."""

    def events(of: tuple[Event, ...]) -> tuple[Event, ...]:
        if len(of) <= count:
            return of
        head, tail = of[: count // 2], of[len(of) - (count - count // 2) :]
        middle = of[count // 2 : len(of) - (count - count // 2)]
        omitted, estimated = estimate_tokens(event_texts(middle))
        return (*head, TextEvent("other", omission_mark(omitted + _image_tokens(middle), estimated)), *tail)

    return _map_group(group, events, lambda tools: tools)


def _map_group(
    group: CanonicalGroup,
    events: Callable[[tuple[Event, ...]], tuple[Event, ...]],
    tools: Callable[[tuple[str, ...]], tuple[str, ...]],
) -> CanonicalGroup:
    def conversation(of: Conversation) -> Conversation:
        return Conversation(events(of.events), None if of.tools is None else tools(of.tools), of.agent)

    members = tuple(replace(m, conversations=tuple(map(conversation, m.conversations))) for m in group.members)
    return CanonicalGroup(members, events(group.shared), tools(group.tools))


def _image_tokens(events: Iterable[Event]) -> int:
    return IMAGE_TOKENS * len(images_of(events))


def _most_events(group: CanonicalGroup) -> int:
    conversations = (conversation for member in group.members for conversation in member.conversations)
    return max(len(group.shared), *(len(conversation.events) for conversation in conversations))
