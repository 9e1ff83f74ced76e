import pytest

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
