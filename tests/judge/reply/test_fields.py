import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.fields import explains_otherwise, problem_with, ranked_otherwise
from gavel.judge.reply.forms import Field
from tests.judge.reply.malformed import ENTRY_FIELDS, FIELDS

SAID = Said.of({"K7QX": 0.9, "W3RT": 0.2})

HARMLESS = [
    {"summary": "K7QX looked first."},
    {"reasoning": "on a scale of 10 K7QX is a 7"},
    {"scale": "0-1"},
    {"scale": "from 0 (worst) to 1 (best)"},
    {"range": [0, 1]},
    {"max_score": 1},
    {"higher_is_better": True},
    {"lower_is_better": False},
    {"corrected": None},
    {"corrections": "none"},
    {"revised": False},
    {"confidence": 0.8},
    {"num_trajectories": 2},
    {"best": "K7QX"},
    {"worst": "W3RT"},
    {"ranking": ["K7QX", "W3RT"]},
    {"final_score": 0.9},
]


@pytest.mark.parametrize("field", HARMLESS, ids=str)
def test_a_field_that_changes_no_score_is_harmless(field):
    [(key, value)] = field.items()
    assert problem_with(Field(key, value), SAID) == ""


@pytest.mark.parametrize("field", [*FIELDS, {"best": "W3RT"}, {"ranking": ["W3RT", "K7QX"]}], ids=str)
def test_a_field_that_rescales_or_contradicts_is_a_problem(field):
    [(key, value)] = field.items()
    assert problem_with(Field(key, value), SAID)


@pytest.mark.parametrize("field", ENTRY_FIELDS, ids=str)
def test_a_field_of_an_entry_that_gives_another_score_is_a_problem(field):
    [(key, value)] = field.items()
    assert problem_with(Field(key, value, "K7QX"), SAID)


@pytest.mark.parametrize("field", [{"correctness": 0.7}, {"confidence": 0.4}, {"comment": "7/10"}], ids=str)
def test_a_field_of_an_entry_may_hold_another_quantity(field):
    [(key, value)] = field.items()
    assert problem_with(Field(key, value, "K7QX"), SAID) == ""


def test_ranks_beside_the_scores_follow_them():
    best_first = [Field("rank", 1, "K7QX"), Field("rank", 2, "W3RT")]
    assert ranked_otherwise(best_first, SAID) == ""
    assert ranked_otherwise([Field("rank", 2, "K7QX"), Field("rank", 1, "W3RT")], SAID)


def test_an_explanation_that_gives_another_score_is_a_problem():
    assert explains_otherwise("it should be 0.9 and is", SAID, "k7qx") == ""
    assert explains_otherwise("it should be 3 calls, or 0.5 s", SAID, "k7qx") == ""
    assert explains_otherwise("the score should rather be 0.4", SAID, "k7qx")


@pytest.mark.parametrize("key", ["reasoning", "explanation", "analysis", "notes", "overall", "message", "rationale"])
@pytest.mark.parametrize(
    "text",
    [
        "W3RT is the best attempt, K7QX the worst.",
        "These are dummy values.",
        "None of these numbers is meant seriously.",
        "I could not read any trajectory.",
        "Example of a valid reply.",
    ],
)
def test_a_text_beside_all_scores_may_not_disown_them(key, text):
    assert problem_with(Field(key, text), SAID)
    assert problem_with(Field(key, "K7QX is the best attempt, W3RT the worst."), SAID) == ""
