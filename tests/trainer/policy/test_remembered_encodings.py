"""A tokenizer that remembers short texts encodes as the tokenizer itself does."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig, create_renderer
from transformers import AutoTokenizer

from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.policy.chat_format import RememberedEncodings

CONVERSATION = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "name": "f", "content": "found " * 40},
]
PLAIN = {"add_special_tokens": False}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_PATH)


@given(texts=st.lists(st.text(max_size=80), max_size=4))
def test_encodings_are_the_tokenizers_own_the_first_time_and_later(tokenizer, texts):
    remembering = RememberedEncodings(tokenizer)
    for text in texts * 2:
        assert remembering.encode(text, **PLAIN) == tokenizer.encode(text, **PLAIN)
        assert remembering.encode(text) == tokenizer.encode(text)
        found, expected = (each(text, **PLAIN, return_offsets_mapping=True) for each in (remembering, tokenizer))
        assert dict(found) == dict(expected)
        assert remembering(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_a_remembered_list_belongs_to_who_asked_for_it(tokenizer):
    remembering = RememberedEncodings(tokenizer)
    remembering.encode("Hello", **PLAIN).clear()
    assert remembering.encode("Hello", **PLAIN) == tokenizer.encode("Hello", **PLAIN)


def test_a_short_text_is_encoded_once_and_a_long_one_each_time(tokenizer):
    asked = []

    class Counting:
        def encode(self, text, **options):
            asked.append(text)
            return tokenizer.encode(text, **options)

    remembering = RememberedEncodings(Counting())
    for _ in range(3):
        remembering.encode("short", **PLAIN)
        remembering.encode("long " * 50, **PLAIN)
    assert asked == ["short", *["long " * 50] * 3]


def test_all_else_is_the_tokenizers_also_of_a_copy(tokenizer):
    copied = copy.copy(RememberedEncodings(tokenizer))
    assert (copied.vocab_size, len(copied)) == (tokenizer.vocab_size, len(tokenizer))
    assert copied.decode(copied.encode("Hello", **PLAIN)) == "Hello"


def test_a_renderer_gives_the_same_ids(tokenizer):
    own, remembering = (
        create_renderer(each, Qwen3RendererConfig()) for each in (tokenizer, RememberedEncodings(tokenizer))
    )
    for _ in range(2):
        assert remembering.render_ids(CONVERSATION, add_generation_prompt=True) == own.render_ids(
            CONVERSATION, add_generation_prompt=True
        )
