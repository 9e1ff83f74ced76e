import base64
import hashlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.sanitize import describe_base64

DATA = Random(0).randbytes(4_821)
STANDARD = base64.b64encode(DATA).decode()
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()
WRAPPED = "\n".join(STANDARD[start : start + 76] for start in range(0, len(STANDARD), 76))


def replaced(text: str) -> str:
    return describe_base64(text)[0]


def test_base64_is_stated_by_size_and_hash():
    digest = hashlib.sha256(DATA).hexdigest()[:12]
    assert replaced(f"got {STANDARD}.") == f"got [base64 data, 4,821 bytes, sha256 {digest}]."


def test_the_same_bytes_make_the_same_mark():
    assert replaced(STANDARD) == replaced(URL_SAFE) == replaced(STANDARD.rstrip("="))


def test_a_data_url_is_named_by_its_type_even_when_it_is_short():
    assert replaced(f"data:image/png;base64,{STANDARD}").startswith("[base64 image/png data, 4,821 bytes, ")
    assert "base64 text/plain data, 12 bytes" in replaced("<a href='data:text/plain;base64,aGVsbG8gdGhlcmUh'>")


def test_wrapped_base64_is_one_mark_and_words_after_it_stay():
    text = replaced(f"file:\n{WRAPPED}\nDone\n")
    assert text.startswith("file:\n[base64 data, 4,")
    assert text.endswith("\nDone\n")
    assert text.count("base64") == 1


@pytest.mark.parametrize(
    "text",
    [
        "ACGT" * 200,
        "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ" * 20,
        "0123456789abcdef" * 100,
        "a" * 5_000,
        "=" * 5_000,
        "usr/lib/python/site-packages/" * 20,
        "word " * 200,
        STANDARD[:200],
        "日本語" * 300,
    ],
    ids=lambda text: text[:12],
)
def test_long_words_that_are_not_base64_stay(text):
    assert replaced(text) == text


@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 3))
def test_text_around_base64_is_kept(before, after, cut):
    before, after = f"{before} ", f" {after}"
    text = replaced(before + STANDARD[: len(STANDARD) - cut] + after)
    assert text.startswith(before)
    assert text.endswith(after)
    assert "bytes, sha256" in text


PNG = b"\x89PNG\r\n\x1a\n" + DATA


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"![x](data:image/png;base64,{STANDARD})", ["image"]),
        (f"<img src='data:IMAGE/svg+xml;base64,{STANDARD}'>", ["image"]),
        (f"data:audio/wav;base64,{STANDARD} data:video/mp4;base64,{STANDARD[::-1][2:]}", ["audio", "video"]),
        (f"data:application/pdf;base64,{STANDARD}", ["file"]),
        (f'{{"data":"{base64.b64encode(PNG).decode()}"}}', ["image"]),
        (f"data:application/octet-stream;base64,{base64.b64encode(PNG).decode()}", ["image"]),
        (f"{base64.b64encode(b'%PDF-1.7' + DATA).decode()}", ["file"]),
        (f"data:text/plain;base64,{STANDARD} data:application/zip;base64,{STANDARD}", []),
        (f"got {STANDARD} and {WRAPPED}", []),
        ("an image/png, data:image/png and ;base64, in words", []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_media_in_text_is_told_from_other_data(text, kinds):
    shown, media = describe_base64(text)
    assert [tag.split()[0] for tag in media] == kinds
    assert all(tag.split()[1] in shown for tag in media)
    assert shown == replaced(text)
