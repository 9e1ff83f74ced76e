"""Keys that a server repeats are not shown, and other words are left as they are."""

import pytest

from gavel.base.secrets import HIDDEN, hide_secrets, without_secrets

ENVIRONMENT = {
    "MY_API_KEY": "a-value-of-mine",
    "HF_TOKEN": "a-value-of-mine-and-longer",
    "AWS_ACCESS_KEY_ID": "AKIA00000000",
    "LOCAL_KEY": "none",
    "KEYBOARD": "a-keyboard",
}


@pytest.mark.parametrize("secret", [*list(ENVIRONMENT.values())[:3], "sk-proj-0123456789abcdef", "hf_0123456789abcdef"])
def test_a_key_is_hidden(secret: str) -> None:
    assert without_secrets(f"the key '{secret}' is wrong", ENVIRONMENT) == f"the key '{HIDDEN}' is wrong"


@pytest.mark.parametrize(
    "words", ["none of this is a-keyboard", "task-0123456789abcdef", "sk-short", "", "http://a/b?size=3"]
)
def test_other_words_stay(words: str) -> None:
    assert without_secrets(words, ENVIRONMENT) == words


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("http://me:planted@store:9000/b is away", f"http://{HIDDEN}@store:9000/b is away"),
        ("PUT https://s/o?part=1&X-Amz-Signature=planted&x=1", f"PUT https://s/o?part=1&X-Amz-Signature={HIDDEN}&x=1"),
    ],
)
def test_what_opens_an_address_is_hidden(words: str, shown: str) -> None:
    assert without_secrets(words, {}) == shown


def test_a_traceback_shows_no_key_of_what_led_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret")
    first, second = ValueError("401 planted-secret", 7), KeyError("planted-secret")
    second.__cause__ = first
    hide_secrets(second)
    assert (first.args, second.args) == ((f"401 {HIDDEN}", 7), (HIDDEN,))
