import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.claims import Said
from gavel.judge.reply.clauses import clauses
from gavel.judge.reply.opinions import contradiction
from gavel.judge.reply.praise import verdicts
from tests.judge.reply import contradictions as texts

SAID = Said.of({"K7QX": 0.9, "W3RT": 0.5, "B9FD": 0.1})
RIGHT = {
    "best": "K7QX",
    "worst": "B9FD",
    "other": "W3RT",
    "high": "0.99",
    "low": "0.13",
    "worst_first": "B9FD, W3RT, K7QX",
}
TURNED = RIGHT | {"best": "B9FD", "worst": "K7QX", "worst_first": "K7QX, W3RT, B9FD"}
ELSEWHERE = ("❌", ">", "🥇", "Best to worst", "1st", ": F", "Winner", "Worst: ", "pick")
"""What `rankings` and `surroundings` find."""
ALIKE = ("tie", "equally", " = ")
ABOUT = [text for text in texts.ABOUT_MEMBERS if not any(part in text for part in ELSEWHERE)]


@pytest.mark.parametrize("text", ABOUT)
def test_what_is_said_of_members_against_their_scores_is_found(text):
    assert contradiction(text.format(**RIGHT), SAID)


@pytest.mark.parametrize("text", [text for text in ABOUT if not any(word in text for word in ALIKE)])
def test_the_same_said_the_other_way_round_is_none(text):
    assert contradiction(text.format(**TURNED), SAID) == ""


NARRATIVE = [
    "K7QX found the worst price, B9FD the cheapest one.",
    "B9FD had the best tone.",
    "B9FD got the amount right; K7QX got the date wrong.",
    "W3RT is better than K7QX at explaining.",
    "K7QX and B9FD are identical up to step 4.",
    "The best answer would have named shelf 14B.",
    "W3RT would have been the best had it looked first.",
    "Is B9FD better than K7QX? No.",
    "B9FD is one of the best-written ones.",
    "K7QX: the second best on speed.",
    "First, B9FD: it answers in 2 turns.",
]


@pytest.mark.parametrize("text", NARRATIVE)
def test_what_happened_in_an_attempt_is_no_verdict(text):
    assert contradiction(text, SAID) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Best of the three.",
        "The best attempt overall.",
        "Better than both others.",
        "Better than W3RT, and more complete.",
        "Outperforms B9FD.",
        "Flawless.",
        "Deserves the highest score.",
        "最好的尝试。",
        "El mejor de los tres intentos.",
        "Bester der drei Versuche.",
        "Rank 1 of 3.",
        "Grade: A",
        "B9FD is worse than this one.",
    ],
)
def test_praise_in_an_explanation_is_compared_with_the_scores(text):
    assert contradiction(text, SAID, "k7qx") == ""
    assert contradiction(text.replace("B9FD", "K7QX").replace("W3RT", "K7QX"), SAID, "b9fd")


@pytest.mark.parametrize(
    "text",
    [
        "Found the best price of all.",
        "The user asked which is the best of the three hotels.",
        "Takes the worst of the routes but arrives.",
        "Fails to greet the user.",
        "Good.",
        "It should have used fewer calls.",
        "Should be more polite.",
        "A perfect tone; the amount is wrong.",
        "Nothing.",
        "No answer.",
        "Better tone than K7QX.",
        "Like K7QX, but slower.",
        "Same first steps as K7QX.",
    ],
)
def test_what_an_explanation_tells_of_the_work_is_no_verdict(text):
    assert contradiction(text, SAID, "w3rt") == ""


def test_numbers_of_attempts_may_be_those_shown_or_those_of_the_entries():
    said = Said.of({"K7QX": 0.1, "W3RT": 0.9}, listed=["W3RT", "K7QX"])
    assert contradiction("Trajectory 1 is best.", said) == ""
    assert contradiction("Trajectory 2 is best.", said) == ""
    both = Said.of({"K7QX": 0.1, "W3RT": 0.9}, listed=["K7QX", "W3RT"])
    assert contradiction("Trajectory 1 is best.", both)


def test_verdicts_are_levels_of_clauses_that_hold_nothing_else():
    mixed = clauses("Flawless. It looked up 3 orders, found a terrible price and passed.", SAID, "k7qx")
    assert verdicts(mixed, "k7qx") == [2]
    assert verdicts(clauses("Not good: failed the task.", SAID, "k7qx"), "k7qx") == [-1, -1]


@given(st.text(alphabet="K7QX W3RT best worst >=:.,'最好不 1st", max_size=60))
def test_any_text_is_read(text):
    contradiction(text, SAID)
    contradiction(text, SAID, "k7qx")
