"""JSON is read as every reader reads it, or refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.http.requests import check_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=VALUES, ascii_only=st.booleans())
def test_whatever_json_writes_is_taken(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    if "\\ud" in text:  # half of a pair may stand alone
        return
    check_json(encoded)


BAD = {
    "NaN": b'{"a": NaN}',
    "infinity": b"[-Infinity]",
    "a number beyond all floats": b'{"a": 1e999}',
    "a long number beyond all floats": b"[" + b"9" * 400 + b".5]",
    "a negative one": b"[-12E+308]",
    "a name twice": b'{"rubric": "a", "b": 1, "rubric": "c"}',
    "a name twice, once escaped": b'{"a": 1, "\\u0061": 2}',
    "a name twice, deep within": b'[{"x": {"y": [1, {"a": 1, "a": 1}]}}]',
    "a mark of UTF-8": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-16 without a mark": "{}".encode("utf-16-le"),
    "Latin-1": '"é"'.encode("latin-1"),
    "a surrogate": b'"\\ud800"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "an overlong character": b'"\xc0\xaf"',
    "a control character": b'"\x01"',
    "too deep": b"[" * 100_000,
    "two values": b"{}{}",
    "nothing": b"",
    "a comment": b"{} // x",
    "a comma more": b"[1,]",
}


@pytest.mark.parametrize("what", BAD)
def test_what_readers_differ_on_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        check_json(BAD[what])
    assert 0 < len(str(refused.value)) < 300


@pytest.mark.parametrize("text", [b'"1e999"', b"[1e-999]", b"[1e308]", b'{"a": {"a": 1}}', b"[" + b"9" * 400 + b"]"])
def test_what_only_looks_like_it_is_taken(text: bytes) -> None:
    check_json(text)


@given(exponent=st.integers(-400, 400), digits=st.integers(1, 400), point=st.booleans())
def test_a_number_is_refused_where_no_float_holds_it(exponent: int, digits: int, point: bool) -> None:
    number = f"{'7' * digits}{'.5' if point else ''}e{exponent}"
    if math.isinf(float(number)):
        with pytest.raises(ValueError, match=r"."):
            check_json(number.encode())
    else:
        check_json(number.encode())
