"""A canonical group made to fit a number of tokens, by one rule for all its members.

Texts longer than a common length lose their middle; when even short texts are too much, conversations lose the middle
of their events. A length is sought that leaves hardly any room over, so no member is cut more than another needs.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate, count

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.prompt.canonical import CanonicalGroup, Conversation, Event, TextEvent, ToolCallEvent, event_texts
from gavel.judge.prompt.token_count import TextTruncator, count_tokens, omission_mark

MIN_READABLE_TOKENS = 64
"""Tokens: texts are cut no shorter than this as long as fewer members, or fewer events, would do."""
_LEAST_TEXT, _LEAST_EVENTS = 16, 2
_MARK, _STRUCTURE = 12, 12
"""Tokens of the mark for what is left out, and of the line that a text stands on: about."""
_SPARE = 50
"""A fiftieth of the room may stay empty: to fill the rest, the whole prompt would be counted many times more."""


def truncate_group(group: CanonicalGroup, most: int, size: Callable[[CanonicalGroup], int]) -> CanonicalGroup:
    """The group, which is too long, with as much of its text as makes `size` of it, in tokens, at most `most`.

    Raises `ContextTooSmallError`.
    """
    cutter = TextTruncator()
    most_events = _most_events(group)

    def shortened(length: int, events: int) -> CanonicalGroup:
        return _with_texts(_with_events(group, events), length, cutter)

    if fitting := _greatest(lambda length: shortened(length, most_events), MIN_READABLE_TOKENS, most, most, size):
        return fitting
    if fitting := _greatest(
        lambda events: shortened(MIN_READABLE_TOKENS, events), _LEAST_EVENTS, most_events, most, size
    ):
        return fitting
    if fitting := _greatest(
        lambda length: shortened(length, _LEAST_EVENTS), _LEAST_TEXT, MIN_READABLE_TOKENS, most, size
    ):
        return fitting
    needed = size(shortened(_LEAST_TEXT, _LEAST_EVENTS))
    raise ContextTooSmallError(
        f"the judge has room for a prompt of {max(most, 0):,} tokens, and the shortest one takes {needed:,}.",
        "Take a judge model with a longer context, or shorter instructions and fewer tools.",
    )


def max_members_shown(group: CanonicalGroup, most: int) -> int:
    """How many members, longest first, fit in `most` tokens with texts cut to `MIN_READABLE_TOKENS`; at least 2."""

    def short(events: Iterable[Event]) -> int:
        return sum(min(count_tokens(text), MIN_READABLE_TOKENS + _MARK) + _STRUCTURE for text in event_texts(events))

    of_members = sorted(
        (sum(short(conversation.events) for conversation in member.conversations) for member in group.members),
        reverse=True,
    )
    room = (
        most - short(group.shared) - sum(min(count_tokens(tool), MIN_READABLE_TOKENS + _MARK) for tool in group.tools)
    )
    return max(2, sum(total <= room for total in accumulate(of_members)))


def _greatest(
    make: Callable[[int], CanonicalGroup], low: int, high: int, most: int, size: Callable[[CanonicalGroup], int]
) -> CanonicalGroup | None:
    """What `make` makes of the greatest number in [low, high] with which it fits, or of one that fills the room.

    Sizes are counted by reading all text, so none is asked for that is far above `most`: from below the number is
    doubled until it is too great, and then sought between the two by their sizes, and by halving now and then.
    """
    if low > high or (taken := size(best := make(low))) > most:
        return None
    aim = most - most // (2 * _SPARE)
    beyond, over = high + 1, 0
    for turn in count():
        if taken >= most - most // _SPARE or beyond - low == 1:
            break
        if not over:
            number = min(2 * low, high)
        else:
            share = 0.5 if turn % 3 == 0 else (aim - taken) / (over - taken)
            number = min(max(low + round((beyond - low) * share), low + 1), beyond - 1)
        if (found := size(made := make(number))) <= most:
            best, low, taken = made, number, found
        else:
            beyond, over = number, found
    return best


def _with_texts(group: CanonicalGroup, length: int, cutter: TextTruncator) -> CanonicalGroup:
    """The group with every text cut to `length` tokens."""

    def cut(text: str) -> str:
        return cutter.cut(text, length)

    def event(of: Event) -> Event:
        match of:
            case TextEvent(role, text):
                return TextEvent(role, cut(text))
            case ToolCallEvent(name, arguments, result):
                return ToolCallEvent(cut(name), cut(arguments), None if result is None else cut(result))

    return _changed(group, lambda events: tuple(map(event, events)), lambda tools: tuple(map(cut, tools)))


def _with_events(group: CanonicalGroup, count: int) -> CanonicalGroup:
    """The group with `count` events of every conversation: the first and the last ones."""

    def events(of: tuple[Event, ...]) -> tuple[Event, ...]:
        if len(of) <= count:
            return of
        head, tail = of[: count // 2], of[len(of) - (count - count // 2) :]
        middle = of[count // 2 : len(of) - (count - count // 2)]
        return (*head, TextEvent("other", omission_mark(sum(map(count_tokens, event_texts(middle))))), *tail)

    return _changed(group, events, lambda tools: tools)


def _changed(
    group: CanonicalGroup,
    events: Callable[[tuple[Event, ...]], tuple[Event, ...]],
    tools: Callable[[tuple[str, ...]], tuple[str, ...]],
) -> CanonicalGroup:
    def conversation(of: Conversation) -> Conversation:
        return Conversation(events(of.events), None if of.tools is None else tools(of.tools))

    members = tuple(replace(m, conversations=tuple(map(conversation, m.conversations))) for m in group.members)
    return CanonicalGroup(members, events(group.shared), tools(group.tools))


def _most_events(group: CanonicalGroup) -> int:
    conversations = (conversation for member in group.members for conversation in member.conversations)
    return max(len(group.shared), *(len(conversation.events) for conversation in conversations))
