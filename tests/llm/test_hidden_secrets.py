"""Keys that a server repeats are not shown, and other words are left as they are."""

import pytest

from gavel.llm.hidden_secrets import HIDDEN, without_secrets

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


@pytest.mark.parametrize("words", ["none of this is a-keyboard", "task-0123456789abcdef", "sk-short", ""])
def test_other_words_stay(words: str) -> None:
    assert without_secrets(words, ENVIRONMENT) == words
