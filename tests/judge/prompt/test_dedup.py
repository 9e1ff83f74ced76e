from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.canonical import Event, Said
from gavel.judge.prompt.dedup import LEAST, common_starts, repeated_texts

LONG = [Said("assistant", name * LEAST) for name in "abc"]
SHORT = [Said("user", name) for name in "xyz"]

events = st.sampled_from([*LONG, *SHORT])
conversations = st.lists(st.lists(events, max_size=6).map(tuple), max_size=6)


def in_full(start: int | None, sharing) -> tuple[Event, ...]:
    if start is None:
        return ()
    return (*in_full(sharing.starts[start].parent, sharing), *sharing.starts[start].events)


@given(conversations)
def test_a_start_and_the_rest_make_the_conversation(given):
    sharing = common_starts(given)
    whole = [(*in_full(start, sharing), *rest) for start, rest in zip(sharing.start_of, sharing.rests, strict=True)]
    assert whole == given


@given(conversations)
def test_every_start_is_used_by_two_and_worth_a_reference(given):
    sharing = common_starts(given)
    for number, start in enumerate(sharing.starts):
        users = [n for n in (*sharing.start_of, *(other.parent for other in sharing.starts)) if n == number]
        assert len(users) >= 2
        assert sum(len(event.text) for event in start.events if isinstance(event, Said)) >= LEAST
        assert start.parent is None or start.parent < number


@given(conversations)
def test_no_two_conversations_that_go_on_from_one_place_begin_with_the_same_long_event(given):
    sharing = common_starts(given)
    nexts = [
        (start, rest[0])
        for start, rest in [
            *zip(sharing.start_of, sharing.rests, strict=True),
            *((start.parent, start.events) for start in sharing.starts),
        ]
        if rest and rest[0] in LONG
    ]
    assert len(nexts) == len(set(nexts))


def test_a_short_beginning_is_shown_with_what_more_of_it_is_shared():
    a, b, x = LONG[0], LONG[1], SHORT[0]
    sharing = common_starts([(x, a), (x, a, b), (x,)])
    assert [start.events for start in sharing.starts] == [(x, a)]
    assert sharing.rests == ((), (b,), (x,))


def test_starts_nest():
    a, b, c = LONG
    sharing = common_starts([(a, b), (a, b, c), (a, c)])
    assert [(start.parent, start.events) for start in sharing.starts] == [(None, (a,)), (0, (b,))]
    assert sharing.start_of == (1, 1, 0)


def test_long_texts_that_come_twice_are_numbered_as_they_appear():
    a, b, c = LONG
    assert repeated_texts([b, a, c, a, b, *SHORT, *SHORT]) == {b.text: 1, a.text: 2}
