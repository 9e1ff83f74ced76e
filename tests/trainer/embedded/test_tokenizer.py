"""The embedded policy's tokenizer: nothing is lost, digits stand alone, markers are whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.embedded.behavior_cloning import (
    END_OF_TURN,
    LONGEST_TOKEN,
    MARKERS,
    PADDING,
    SPECIAL_TOKENS,
    token_id,
    train_tokenizer,
)

TEXTS = ['{"name": "refund", "arguments": {"order_id": "7890"}}', "I want a refund for order 1234."] * 20
VOCABULARY = 300


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, VOCABULARY)


@given(st.text(max_size=60))
def test_any_text_comes_back_as_it_was(policy, text):
    for marker in (*MARKERS, *SPECIAL_TOKENS):
        text = text.replace(marker, "")
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    assert policy.tokenizer.decode(ids) == text


def test_the_vocabulary_has_the_size_that_was_asked_for(tokenizer):
    assert len(tokenizer) == VOCABULARY


@given(st.from_regex(r"[0-9]{1,12}", fullmatch=True))
def test_every_digit_is_a_token(policy, number):
    ids = policy.tokenizer.encode(f"order {number}", add_special_tokens=False)
    assert [policy.tokenizer.decode([token]) for token in ids[-len(number) :]] == list(number)


@pytest.mark.parametrize("marker", [*MARKERS, *SPECIAL_TOKENS])
def test_a_marker_is_one_token_wherever_it_stands(tokenizer, policy, marker):
    for each in (tokenizer, policy.tokenizer):
        ids = each.encode(f"a{marker}b", add_special_tokens=False)
        assert ids.count(token_id(each, marker)) == 1
        assert each.decode(ids) == f"a{marker}b"


def test_frequent_text_becomes_long_tokens_but_not_too_long(tokenizer, policy):
    assert len(tokenizer.encode('{"name": "refund", "arguments"', add_special_tokens=False)) < 20
    for each in (tokenizer, policy.tokenizer):
        assert max(len(token) for token in each.get_vocab()) <= LONGEST_TOKEN


def test_a_turn_ends_with_the_end_of_turn_and_padding_is_something_else(tokenizer, policy):
    for each in (tokenizer, policy.tokenizer):
        assert each.eos_token == END_OF_TURN
        assert each.pad_token == PADDING
        assert token_id(each, END_OF_TURN) != token_id(each, PADDING)


def test_the_stop_token_of_the_chat_format_is_the_end_of_turn(policy):
    assert token_id(policy.tokenizer, END_OF_TURN) in policy.renderer.get_stop_token_ids()
