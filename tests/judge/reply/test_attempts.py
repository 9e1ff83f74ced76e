import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.attempts import name_attempts

INDICES = {"K7QX": (1,), "W3RT": (0, 2), "M4TD": ()}

NAMED = {
    "K7QX looked first.": "Attempt 2 looked first.",
    "Better than K7QX.": "Better than attempt 2.",
    "better than trajectory K7QX, worse than [W3RT]": "better than attempt 2, worse than attempts 1 and 3",
    "Trajectory K7QX's refund": "Attempt 2's refund",
    "It failed. K7QX did not.": "It failed. Attempt 2 did not.",
    "see **K7QX** and `W3RT`": "see **attempt 2** and attempts 1 and 3",
    "trajectory_K7QX (K7QX)": "attempt 2 attempt 2",
    "k7qx and K7QXa": "Attempt 2 and attempt 2",
    "looks 1: K7QXb is kind": "looks 1: attempt 2 is kind",
    "as good as M4TD": "as good as a reference attempt",
    "AK7QX, K7QX9 and K7QXab are others": "AK7QX, K7QX9 and K7QXab are others",
    "优于K7QX": "优于attempt 2",
    "": "",
}


@pytest.mark.parametrize("text", NAMED)
def test_labels_become_numbers_of_attempts(text):
    assert name_attempts(text, INDICES) == NAMED[text]


def test_without_labels_a_text_stays():
    assert name_attempts("K7QX", {}) == "K7QX"


def with_a_pattern_of_labels(text, indices):
    """The slow way: one pattern, compiled for these labels."""
    names = {"k7qx": "attempt 2", "w3rt": "attempts 1 and 3", "m4td": "a reference attempt"}
    named = re.compile(
        r"(?P<noun>(?<![^\W_])(?:trajector(?:y|ies)|attempts?|candidates?|rollouts?|responses?|labels?|ids?)"
        rf"[ _#:-]{{1,2}})?(?P<open>[\[(\"'`‘“]?)(?<![A-Za-z0-9])"
        rf"(?P<label>{'|'.join(names)})[a-z]?(?![A-Za-z0-9])(?P<close>[\])\"'`’”]?)",
        re.IGNORECASE,
    )

    def replace(found):
        name = names[found["label"].casefold()]
        before = text[max(0, found.start() - 9) : found.start()].rstrip(" *_")[-1:]
        starts = before in ("", ".", "!", "?", "\n") if not found["noun"] else found["noun"][0].isupper()
        name = name[0].upper() + name[1:] if starts else name
        return name if found["open"] and found["close"] else found["open"] + name + found["close"]

    return named.sub(replace, text)


WORDS = ["K7QX", "k7qxb", "W3RT", "M4TD", "Trajectory", "attempts", "ids", "trajectories", "best", "9", "的", "K7QX9"]
MARKS = [" ", " ", "_", ":", "#", "-", "(", ")", "'", '"', "`", "[", "]", ".", "\n", "*"]


@given(st.lists(st.sampled_from(WORDS + MARKS)).map("".join))
def test_any_text_is_named_as_one_pattern_of_all_labels_does_it(text):
    assert name_attempts(text, INDICES) == with_a_pattern_of_labels(text, INDICES)
