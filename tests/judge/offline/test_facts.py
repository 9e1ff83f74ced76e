import json

import pytest
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


@pytest.mark.parametrize("arguments", ["", "[1]", "no JSON", "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_none(arguments: str):
    [call] = facts_of([Conversation((ToolCallEvent("find", arguments, "x"),))]).made
    assert call.arguments == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_the_words_of_a_list_are_those_of_its_items_in_order(value: object):
    assert words_of([value, "and", value]) == [*words_of(value), "and", *words_of(value)]
    assert words_of(json.loads(json.dumps(value))) == words_of(value)


def test_words_are_of_values_and_not_of_keys():
    assert words_of({"room": "101, left", "beds": [2, {"x": None}]}) == ["101", "left", "2"]
