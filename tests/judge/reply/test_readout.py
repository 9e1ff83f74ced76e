import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.readout import LEVELS, MAX_OFF_SCALE, read_readout
from gavel.judge.reply.verdict import VerdictError
from gavel.judge.rubric import Rubric

RUBRIC = Rubric("Be good.")


def reply(*tokens: tuple[str, dict[str, float]], text: str | None = None) -> str:
    """`tokens`: each with the probabilities of what could stand in its place."""
    listed = [[token, [[one, math.log(p)] for one, p in shares.items() if p]] for token, shares in tokens]
    return json.dumps({"text": "".join(token for token, _ in tokens) if text is None else text, "tokens": listed})


@given(
    st.lists(st.floats(0, 1), min_size=LEVELS, max_size=LEVELS).filter(lambda weights: sum(weights) > 0.1),
    st.floats(0, 1),
    st.sampled_from([" ", "\u0120", ":", " = "]),
)
def test_the_mean_is_over_the_digits_and_little_may_be_off_the_scale(weights, off, before):
    shares = {f"{before}{digit}": (1 - off) * w / math.fsum(weights) for digit, w in enumerate(weights)}
    text = reply(("X", {}), (f"{before}5", {**shares, "none": off}))
    if abs(off - MAX_OFF_SCALE) < 1e-6:
        return
    if off > MAX_OFF_SCALE:
        with pytest.raises(VerdictError, match="off the scale"):
            read_readout(text, RUBRIC, ["X"])
    else:
        mean = math.fsum(digit * w for digit, w in enumerate(weights)) / math.fsum(weights) / (LEVELS - 1)
        assert read_readout(text, RUBRIC, ["X"]).scores["X"].score == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("said", "end"),
    [
        ('{"X":', "}"),
        ('```json\n{"X": ', "}\n```"),
        ('<think>{"X": 1}</think>{"X": ', "}"),
        ('[THINK]X: 1[/THINK]{"X": ', "}"),
        ("X: ", ""),
        ("X =", ""),
        ("- **X**:", ""),
        ("`X` ", ""),
    ],
)
def test_a_digit_is_found_behind_its_label_in_the_final_answer(said, end):
    text = reply((said, {}), ("7", {"7": 1.0}), (end, {}))
    assert read_readout(text, RUBRIC, ["X"]).scores["X"].score == pytest.approx(7 / 9)


THOUGHTS = ["<think>", "[THINK]", "◁think▷", "<seed:think>", "<|START_THINKING|>", "<reflections_nobody_has_seen>"]


@pytest.mark.parametrize("opening", THOUGHTS)
@pytest.mark.parametrize("draft", ['{"X": 7}', "X: 7", '{"X": 7} is my first idea'])
def test_a_draft_in_thoughts_that_are_cut_off_is_no_answer(opening, draft):
    before, after = draft.split("7")
    with pytest.raises(VerdictError):
        read_readout(reply((f"{opening}\n{before}", {}), ("7", {"7": 1.0}), (after, {})), RUBRIC, ["X"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "\nWait, X should be 2."),
        ("", "\nX: 2"),
        ("", "\nOn reflection swap them."),
        ("", "\n(0 = best, 9 = worst)"),
        ("", "\nLower is better."),
        ("", '\n```json\n{"X": 2'),
        ("From 1 (best) to 9 (worst):\n", ""),
        ('{"X": 2}\nNo. ', ""),
    ],
)
def test_a_digit_that_something_around_it_changes_is_no_score(before, after):
    with pytest.raises(VerdictError):
        read_readout(reply((before + '{"X": ', {}), ("7", {"7": 1.0}), ("}" + after, {})), RUBRIC, ["X"])


@pytest.mark.parametrize(
    "said", ["X", "X is ", "XY: ", "", "X: 1", "X: 3.", "X: 7 / ", "X: -", "X: 3\nX: ", "AX: ", "X: seven, "]
)
def test_another_number_is_not_taken_for_the_score(said):
    with pytest.raises(VerdictError):
        read_readout(reply((said, {}), ("7", {"7": 1.0})), RUBRIC, ["X"])


def test_a_digit_within_a_longer_token_has_no_distribution():
    with pytest.raises(VerdictError, match="not a token of its own"):
        read_readout(reply(("X: 7", {"X: 7": 1.0})), RUBRIC, ["X"])


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "{}",
        "[]",
        '{"text": "X: 7", "tokens": null}',
        '{"text": "X: 7", "tokens": []}',
        '{"text": "X: 7", "tokens": [["X: "]]}',
        '{"text": "X: 7", "tokens": [["X: ", []], ["8", [["8", 0]]]]}',
        '{"text": "X: 7", "tokens": [["X: ", []], ["7", [["7", NaN]]]]}',
        '{"text": "X: 7", "tokens": [["X: ", []], ["7", [["7", 3.0]]]]}',
        '{"text": "X: 7", "tokens": [["X: ", []], ["7", []]]}',
    ],
)
def test_what_has_no_probabilities_cannot_be_used(text):
    with pytest.raises(VerdictError):
        read_readout(text, RUBRIC, ["X"])
