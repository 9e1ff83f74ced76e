from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.canonical_group import Event, TextEvent
from gavel.judge.prompt.fenced_transcript import MIN_SHARED_CHARACTERS, find_shared_prefixes, repeated_texts

LONG = [TextEvent("assistant", name * MIN_SHARED_CHARACTERS) for name in "abc"]
SHORT = [TextEvent("user", name) for name in "xyz"]

events = st.sampled_from([*LONG, *SHORT])
conversations = st.lists(st.lists(events, max_size=6).map(tuple), max_size=6)


def in_full(prefix: int | None, tree) -> tuple[Event, ...]:
    if prefix is None:
        return ()
    return (*in_full(tree.prefixes[prefix].parent, tree), *tree.prefixes[prefix].events)


@given(conversations)
def test_a_prefix_and_the_suffix_make_the_conversation(given):
    tree = find_shared_prefixes(given)
    whole = [(*in_full(prefix, tree), *suffix) for prefix, suffix in zip(tree.prefix_of, tree.suffixes, strict=True)]
    assert whole == given


@given(conversations)
def test_every_prefix_is_used_by_two_and_worth_a_reference(given):
    tree = find_shared_prefixes(given)
    for number, prefix in enumerate(tree.prefixes):
        users = [n for n in (*tree.prefix_of, *(other.parent for other in tree.prefixes)) if n == number]
        assert len(users) >= 2
        assert sum(len(event.text) for event in prefix.events if isinstance(event, TextEvent)) >= MIN_SHARED_CHARACTERS
        assert prefix.parent is None or prefix.parent < number


@given(conversations)
def test_no_two_suffixes_of_one_prefix_begin_with_the_same_long_event(given):
    tree = find_shared_prefixes(given)
    nexts = [
        (prefix, suffix[0])
        for prefix, suffix in [
            *zip(tree.prefix_of, tree.suffixes, strict=True),
            *((prefix.parent, prefix.events) for prefix in tree.prefixes),
        ]
        if suffix and suffix[0] in LONG
    ]
    assert len(nexts) == len(set(nexts))


def test_a_short_prefix_is_joined_to_what_follows_it():
    a, b, x = LONG[0], LONG[1], SHORT[0]
    tree = find_shared_prefixes([(x, a), (x, a, b), (x,)])
    assert [prefix.events for prefix in tree.prefixes] == [(x, a)]
    assert tree.suffixes == ((), (b,), (x,))


def test_prefixes_nest():
    a, b, c = LONG
    tree = find_shared_prefixes([(a, b), (a, b, c), (a, c)])
    assert [(prefix.parent, prefix.events) for prefix in tree.prefixes] == [(None, (a,)), (0, (b,))]
    assert tree.prefix_of == (1, 1, 0)


def test_long_texts_that_come_twice_are_numbered_as_they_appear():
    a, b, c = LONG
    assert repeated_texts([b, a, c, a, b, *SHORT, *SHORT]) == {b.text: 1, a.text: 2}
