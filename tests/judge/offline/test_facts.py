import json

from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.offline.facts import CallMade, facts_of, words_of
from gavel.judge.prompt.canonical_group import Conversation
from gavel.judge.prompt.provider_formats import TextEvent, ToolCallEvent


def test_calls_come_with_their_arguments_and_results():
    attempt = [
        TextEvent("user", "A room, please."),
        ToolCallEvent("find", '{"people": 2}', '[{"room": "a"}]'),
        ToolCallEvent("book", '{"room": "b"}', '{"error": "taken"}'),
        ToolCallEvent("book", '{"room": "a"}', "booked a"),
        TextEvent("assistant", "Done."),
        TextEvent("user", "Thanks."),
    ]
    facts = facts_of([Conversation(tuple(attempt))])
    assert facts.made == (
        CallMade("find", {"people": 2}, [{"room": "a"}], turn=1),
        CallMade("book", {"room": "a"}, "booked a", turn=3),
    )
    assert (facts.calls, facts.failed, facts.request) == (("find", "book"), ("book",), "A room, please.\n\nThanks.")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_the_words_of_a_list_are_those_of_its_items_in_order(value: object):
    assert words_of([value, "and", value]) == [*words_of(value), "and", *words_of(value)]
    assert words_of(json.loads(json.dumps(value))) == words_of(value)
