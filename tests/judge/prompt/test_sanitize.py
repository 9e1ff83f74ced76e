import base64
import re
import unicodedata
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gavel.judge.prompt.sanitize import RESERVED, describe_base64, redact_secrets, sanitize

pieces = st.sampled_from(
    [
        *"<>[]|¦\uffe4｜＜＞﹤﹥［］﹇﹈‹›⁅⁆~\0\ud800\udfff\n",
        *"\u00ad\u061c\u200b\u200c\u200d\u200e\u202a\u202e\u2060\u2066\u3164\ufe0e\ufe0f\ufeff\U000e0067\U000e007f",
        *"s /s INST im_start <| |> ]~b] [e~[ ]~!b[ क् می é ❤ 🏴 👨 1 \u20e3".split(),  # noqa: SIM905
    ]
)
hostile = st.lists(pieces | st.text(max_size=4) | st.characters(categories=["Cs", "Cf"]), max_size=12).map("".join)


@given(hostile)
def test_sanitized_text_can_be_sent_holds_no_fence_in_any_form_and_stays_as_it_is(text):
    clean = sanitize(text)
    assert sanitize(clean) == clean
    assert clean.encode().decode() == clean
    assert "\0" not in clean
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert RESERVED not in unicodedata.normalize(form, clean)


@given(st.lists(hostile, max_size=3).map("<s>".join))
def test_no_special_token_is_left(text):
    clean = sanitize(text)
    for form in (clean, unicodedata.normalize("NFKC", clean)):
        for token in ("<s>", "</s>", "[INST]", "<|im_start|>", "<|s|>", "]~b]", "[e~["):
            assert token not in form


@given(
    st.text(
        st.characters(exclude_categories=["Cs", "Cf", "Cn", "Mn", "Lo"], exclude_characters="¦\uffe4\0<>[]＜＞［］﹤﹥")
    )
)
@example("one\r\ntwo\r\r\n")
def test_text_without_tricks_comes_back_composed_with_line_ends_of_one_kind(text):
    assert sanitize(text) == unicodedata.normalize("NFC", re.sub("\r+\n", "\n", text))


@pytest.mark.parametrize(
    "text",
    [
        "He said: “it's 5 < 6, isn't it?” – and left (at 7 p.m.).",
        "xs |> List.map f <| y; a <|> b; p <$> q; Array<A|B>; Vec<S>; List<T>; cat <<EOF | sort -u > out; a[i] || b[s]",
        '{"a": [1, 2, {"b": "<div class=\\"x\\"><b>bold</b></div>"}], "c": null}\n\tindented',
        "می‌خواهم کتاب‌هایم را به شرکت‌های دیگر بفرستم. فایل PDF‌ها",
        "क्‍षि और श्री‌मान, അവന്‍ വന്നു",
        "[x] done, [ ] open, [1], [a-z]+, [OPTIONS]",
    ],
)
def test_real_text_comes_back_as_it_is(text):
    assert sanitize(text) == text


LETTERS = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5kL7nP9rS1uX3"


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        (f"sk-{LETTERS}", "OpenAI key"),
        (f"sk-ant-api03-{LETTERS}", "Anthropic key"),
        (f"AIza{LETTERS[:35]}", "Google key"),
        ("xoxb-123456789012-abcdefGHIJ", "Slack token"),
        (f"hf_{LETTERS[:34]}", "Hugging Face token"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN", "token"),
        ("bob.o'x+tag@mail.example.co.uk", "e-mail address"),
        ("4111\u00a01111\u00a01111\u00a01111", "card number"),
        ("378282246310005", "card number"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "use {}, please", '{{"value": "{}"}}', "a\n{}\nb", "({})"])
def test_a_secret_becomes_its_kind(secret, kind, around):
    shown = redact_secrets(around.format(secret))
    assert f"[{kind}]" in shown
    assert secret[-8:] not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://admin:p4ss@db:5432/x", "postgres://admin:[password]@db:5432/x"),
        ('{"api_key":"abcdefgh12345","n":1}', '{"api_key":"[secret]","n":1}'),
        ("password = hunter2hunter", "password = [secret]"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE+/=\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----[private key]-----END RSA PRIVATE KEY-----",
        ),
        ("card 4111 1111 1111 1111 12/27 123", "card [card number] 12/27 123"),
        ("https://x.org/?to=jane.doe%40example.com&n=1", "https://x.org/?to=[e-mail address]&n=1"),
        ("sk-learn-is-a-library-for-machine-learning", None),
        ("the order 4111111111111112 and the time 1763782000123456", None),
        ("max_tokens: 1234567890, token count: 7", None),
        ("user@host, @property, a@b, x @ y.com", None),
        ("password: {password}, token=$TOKEN", None),
        ("Pi is 3.14159265358979323846.", None),
        ("4111.111111111111 and 10.4111.1111.1111.1111 and 4111-1111-1111-1112", None),
    ],
)
def test_only_the_secret_itself_is_replaced_and_what_is_none_stays(text, shown):
    assert redact_secrets(text) == (shown or text)


DATA = Random(0).randbytes(4_821)
STANDARD = base64.b64encode(DATA).decode()
WRAPPED = "\n".join(STANDARD[start : start + 76] for start in range(0, len(STANDARD), 76))


PNG = b"\x89PNG\r\n\x1a\n" + DATA


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"![x](data:image/png;base64,{STANDARD})", ["image"]),
        (f"data:audio/wav;base64,{STANDARD} data:video/mp4;base64,{STANDARD[::-1][2:]}", ["audio", "video"]),
        (f"data:application/pdf;base64,{STANDARD}", ["file"]),
        (f'{{"data":"{base64.b64encode(PNG).decode()}"}}', ["image"]),
        (f"{base64.b64encode(b'%PDF-1.7' + DATA).decode()}", ["file"]),
        (f"got {STANDARD} and {WRAPPED}", []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_media_in_text_is_told_from_other_data(text, kinds):
    shown, media = describe_base64(text)
    assert [tag.split()[0] for tag in media] == kinds
    assert all(tag.split()[1] in shown for tag in media)


def test_a_data_url_is_named_by_its_type_even_when_it_is_short():
    shown, _ = describe_base64(f"data:image/png;base64,{STANDARD} <a href='data:text/plain;base64,aGVsbG8gdGhlcmUh'>")
    assert shown.startswith("[base64 image/png data, 4,821 bytes, ")
    assert "base64 text/plain data, 12 bytes" in shown
