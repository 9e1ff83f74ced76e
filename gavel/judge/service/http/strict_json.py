"""JSON that all read alike (RFC 8259, I-JSON): in UTF-8, no name twice in an object, and numbers that are numbers.

pydantic reads NaN, Infinity and 1e999 as numbers that are none, and of a name that stands twice the last value; a proxy
in front may read the first.
"""

import json

import jiter

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
"""In which substrings are looked for: a pattern over digits takes ten times as long."""
_MAY_BE_INFINITE = (b"e000", b"e+000", b"0" * 200)
_MESSAGE_LENGTH = 200
_HALF = "hex escape"
"""In jiter's words for \\ud800 without its other half, which JavaScript and Python write for an emoji cut in two."""


class NotJsonError(ValueError):
    """The text is not JSON, or not strict JSON."""


def check_json(text: bytes) -> None:
    """Raises `NotJsonError`, which says where."""
    if text.startswith(_BYTE_ORDER_MARKS):
        raise NotJsonError("it begins with a byte order mark")
    try:
        jiter.from_json(text, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
        shapes = text.translate(_SHAPES)
        if any(shape in shapes for shape in _MAY_BE_INFINITE):
            json.loads(text, parse_float=_finite)
    except ValueError as error:
        why = f"{error!s:.{_MESSAGE_LENGTH}}"
        raise NotJsonError(f"{why} (half of a surrogate pair is no character)" if _HALF in why else why) from None


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.20} is too large")
    return value
