import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.truncate import TextTruncator, count_tokens
from gavel.llm.providers import load_litellm

MARK = re.compile(r" ?\[… (\d+) tokens left out …\] ?")
TEXTS = ["one two three " * 50, "退货政策要求订单在三十天之内。" * 30, "🙂👩‍👩‍👧" * 60, "a" * 9000, "x = f(y)\n" * 100]


@pytest.mark.parametrize("text", TEXTS)
def test_the_count_is_the_tokenizers_and_a_few_more_at_most(text):
    exact = len(load_litellm().encoding.encode(text))
    assert exact <= count_tokens(text) <= exact + 8 * (len(text) // 4096)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("most", [1, 16, 65])
def test_a_cut_keeps_head_and_tail_and_says_what_it_left_out(text, most):
    shown = TextTruncator().truncate(text, most)
    left_out = MARK.search(shown)
    assert left_out
    head, tail = shown[: left_out.start()], shown[left_out.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(left_out[1]) == count_tokens(text) - most
    assert count_tokens(head) + count_tokens(tail) <= most


@given(st.text(max_size=200), st.integers(1, 400))
def test_what_fits_is_left_as_it_is(text, most):
    shown = TextTruncator().truncate(text, most)
    assert (shown == text) == (count_tokens(text) <= most)


def test_special_tokens_are_text():
    assert count_tokens("<|endoftext|>") > 1


def test_what_is_left_out_of_a_very_long_text_is_estimated_and_told_so():
    text = "退货政策 one two three\n" * 20_000
    mark = re.search(r"\[… about (\d+) tokens left out …\]", TextTruncator().truncate(text, 500))
    assert mark
    assert int(mark[1]) == pytest.approx(count_tokens(text) - 500, rel=0.02)


def test_the_estimate_does_not_depend_on_what_was_truncated_before():
    text = "".join(f"line {n}\n" * (n % 7) for n in range(30_000))
    used = TextTruncator()
    lengths = [64, 5_000, 50_000, 300]
    assert [used.truncate(text, n) for n in lengths] == [TextTruncator().truncate(text, n) for n in lengths]


def test_counting_stops_when_it_is_enough():
    assert 100 <= count_tokens("word " * 1_000_000, stop_at=100) < 5_000
