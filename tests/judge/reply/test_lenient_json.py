import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.lenient_json import Broken, find_value, read_value

READ = {
    "single quotes": ("{'a': 'b'}", {"a": "b"}, "quotes"),
    "smart quotes": ("{“a”: ”b”}", {"a": "b"}, "quotes"),
    "an apostrophe": ("{'a': 'the judge's view'}", {"a": "the judge's view"}, "quotes"),
    "quotes within": ('{"a": "said "hi" twice", "b": 1}', {"a": 'said "hi" twice', "b": 1}, "quotes"),
    "an object quoted within": ('[{"a": "got {"c": "7"} back"}]', [{"a": 'got {"c": "7"} back'}], "quotes"),
    "escapes in single quotes": (r"{'a': 'it\'s \u00e9\n'}", {"a": "it's é\n"}, "quotes"),
    "a trailing comma": ('{"a": [1, 2,], }', {"a": [1, 2]}, "comma"),
    "a missing comma": ('[{"a": 1\n"b": 2} {"a": 3}]', [{"a": 1, "b": 2}, {"a": 3}], "comma"),
    "a comment to the end of the line": ('{"a": 1, // one\n"b": 2 # two\n}', {"a": 1, "b": 2}, "comment"),
    "a comment in the only line": ('[{"a": 1} // best, {"a": 2}]', [{"a": 1}, {"a": 2}], "comment"),
    "a block comment": ('{"a": /* one */ 1}', {"a": 1}, "comment"),
    "unquoted keys": ("{a: 1, b_c: 2}", {"a": 1, "b_c": 2}, "unquoted key"),
    "unquoted values": (
        "{'a': True, 'b': None, 'c': 90%, 'd': x}",
        {"a": True, "b": None, "c": "90%", "d": "x"},
        "quotes",
    ),
    "a bracket missing within": ('{"a": [{"b": 1}}', {"a": [{"b": 1}]}, "bracket"),
    "a bracket missing at the end": ('{"a": [{"b": 1}]\n', {"a": [{"b": 1}]}, "bracket"),
}

BROKEN = {
    "a number that breaks off": '{"a": 0.',
    "a number at the end": '{"a": 0.9',
    "a string that breaks off": '{"a": "b',
    "a comma at the end": '[{"a": 1},',
    "a comment of several words": '{"a": 1, // one, {\n"b": 2}',
    "a comment that may hide the rest": '{"a": {"b": 1} // and',
    "a remark beside a number": '{"a": 0.9 (good)}',
    "a key without a value": '{"a", "b": 1}',
    "too deep": "[" * 1000 + '{"a": 1}' + "]" * 1000,
}


@pytest.mark.parametrize("case", READ)
def test_syntax_is_repaired_and_counted(case):
    text, expected, kind = READ[case]
    value, end, repairs = read_value(text, 0)
    assert value == expected
    assert not text[end:].strip()
    assert repairs[kind] > 0


@pytest.mark.parametrize("case", BROKEN)
def test_nothing_is_completed(case):
    with pytest.raises(Broken):
        read_value(BROKEN[case], 0)


def test_a_key_that_matters_within_a_string_means_that_a_quote_is_missing():
    text = '{"note": "why, "score": 1, "x": "y"}'
    assert read_value(text, 0)[0] == {"note": 'why, "score": 1, "x": "y'}
    with pytest.raises(Broken):
        read_value(text, 0, {"score"})


def test_a_key_given_twice_has_one_value():
    assert read_value("{a: 1, 'a': 1}", 0)[0] == {"a": 1}
    with pytest.raises(Broken):
        read_value('{"a": 1, "a": 2}', 0)


def test_where_the_value_stands_is_known():
    reply = '<think>{"a": 0}</think>```json\n{"a": 1}\n```'
    found = find_value(reply)
    assert found.value == {"a": 1}
    assert reply[found.start : found.end] == '{"a": 1}'


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=3) | st.dictionaries(st.text(max_size=5), json_values, max_size=3))
def test_json_is_read_as_it_is_without_repairs(value):
    text = json.dumps(value)
    assert read_value(text, 0) == (value, len(text), {})


@given(st.text(alphabet="{}[]\"'\\:,/*#“” \nab01.<>think", max_size=60))
def test_any_text_is_one_value_or_broken(text):
    with suppress(Broken):
        found = find_value(text, {"a"})
        assert isinstance(found.value, dict | list | str)
