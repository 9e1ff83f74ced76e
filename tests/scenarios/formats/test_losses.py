"""Values are as every reader of JSON takes them, and each change of one is counted."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.formats.exported import NOT_FINITE, SURROGATE, TOO_DEEP, Losses

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=20,
)


@given(VALUES)
def test_every_value_becomes_strict_json_in_utf_8(value):
    text = json.dumps(Losses().plain(value), ensure_ascii=False, allow_nan=False)
    text.encode()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=10))
def test_a_plain_value_stays_as_it_is(value):
    losses = Losses()
    assert losses.plain(value) == value
    assert losses.notes() == []


def test_what_changes_is_counted_by_reason():
    losses = Losses()
    assert losses.plain({"a\ud800": [math.nan, math.inf, 1.5], "pair": "\ud83d\ude00"}) == {
        "a�": [None, None, 1.5],
        "pair": "😀",
    }
    assert losses.notes() == [f"2 × {SURROGATE}", f"2 × {NOT_FINITE}"]


def test_a_value_nested_too_deep_for_a_parser_is_text():
    value: list = []
    for _ in range(5000):
        value = [value]
    losses = Losses()
    json.loads(json.dumps(losses.plain(value)))
    assert losses.notes() == [f"1 × {TOO_DEEP}"]
