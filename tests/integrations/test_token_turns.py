"""The turns of a token sequence."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gavel.integrations._rewards import turns
from tests.integrations.words import Words

TOKENS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1)))


def test_sampled_runs_are_the_assistant_s_and_what_lies_between_is_the_user_s():
    words = Words()
    ids = words.encode("look it up found: 9 days it is 9 days old")
    assert turns(words, ids, [1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]) == [
        {"role": "assistant", "content": "look it up"},
        {"role": "user", "content": "found: 9 days"},
        {"role": "assistant", "content": "it is 9 days old"},
    ]


@given(TOKENS)
def test_no_token_is_lost_or_doubled(tokens: list[tuple[int, int]]):
    words = Words()
    ids = [words.encode(f"w{number}")[0] for number, _ in tokens]
    found = turns(words, ids, [sampled for _, sampled in tokens])
    assert " ".join(turn["content"] for turn in found) == words.decode(ids)
    assert all(one["role"] != other["role"] for one, other in pairwise(found))
