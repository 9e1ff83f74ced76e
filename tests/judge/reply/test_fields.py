import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.fields import problems_with
from gavel.judge.reply.forms import Field
from tests.judge.reply.malformed import ENTRY_FIELDS, FIELDS

SAID = Said.of({"K7QX": 0.9, "W3RT": 0.2})


def problems(key, value, label="", *, before=False):
    return list(problems_with([Field(key, value, label, before)], SAID))


HARMLESS = [
    {"summary": "K7QX looked first."},
    {"summary": "K7QX is complete; W3RT guesses."},
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
    {"confidence": "high"},
    {"num_trajectories": 2},
    {"average": 0.55},
    {"best": "K7QX"},
    {"worst": "W3RT"},
    {"winner": "K7QX", "loser": "W3RT"},
    {"ranking": ["K7QX", "W3RT"]},
    {"tie": []},
    {"final_score": 0.9},
    {"language": "en"},
    {"grades": {"K7QX": "A", "W3RT": "D"}},
    {"notes": "W3RT was polite but did not finish."},
]
PROBLEMS = [
    *FIELDS,
    {"best": "W3RT"},
    {"winner": "W3RT"},
    {"loser": "K7QX"},
    {"ranking": ["W3RT", "K7QX"]},
    {"podium": ["W3RT", "K7QX"]},
    {"sorted": ["W3RT", "K7QX"]},
    {"tie": ["W3RT", "K7QX"]},
    {"passed": ["W3RT"]},
    {"grades": {"K7QX": "D", "W3RT": "A"}},
    {"per_member": {"K7QX": "poor", "W3RT": "excellent"}},
    {"verdict": "W3RT first"},
    {"tl;dr": "W3RT best, K7QX worst"},
    {"summary": "K7QX failed the task. W3RT solved it."},
    {"overall": "All equally good."},
    {"reasoning": "on a scale of 10 K7QX is a 7"},
    {"conclusion": "K7QX and W3RT were switched when writing this."},
    {"final_note": "Treat K7QX as 0.3."},
    {"caveats": ["scores are placeholders until the logs load"]},
    {"title": "Score template"},
    {"mode": "dry_run"},
    {"is_final": False},
    {"sample": True},
    {"needs_review": True},
    {"meta": {"scale": "0-5"}},
    {"multiply_by": 10},
    {"polarity": -1},
    {"second_opinion": [0.9, 0.2, 0.5]},
    {"pending": True},
    {"confidence": 0},
    {"temperature": 7},
]


@pytest.mark.parametrize("fields", HARMLESS, ids=str)
def test_a_field_that_changes_no_score_is_harmless(fields):
    assert [problem for key, value in fields.items() for problem in problems(key, value)] == []


@pytest.mark.parametrize("field", PROBLEMS, ids=str)
def test_a_field_that_rescales_or_contradicts_is_a_problem(field):
    [(key, value)] = field.items()
    assert problems(key, value)


@pytest.mark.parametrize("field", ENTRY_FIELDS, ids=str)
def test_a_field_of_an_entry_that_gives_another_score_is_a_problem(field):
    [(key, value)] = field.items()
    assert problems(key, value, "K7QX")


@pytest.mark.parametrize("field", [{"correctness": 0.7}, {"confidence": 0.4}, {"comment": "7/10 for tone"}], ids=str)
def test_a_field_of_an_entry_may_hold_another_quantity(field):
    [(key, value)] = field.items()
    assert problems(key, value, "K7QX") == []


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
    assert problems(key, text)
    assert problems(key, "K7QX is the best attempt, W3RT the worst.") == []


def test_reasoning_before_the_scores_may_hold_drafts_but_ends_in_the_same_ranking():
    draft = "First 0.3 for W3RT, then more: on a scale of 10 a 7. Wait, no."
    assert problems("reasoning", draft, before=True) == []
    assert problems("reasoning", draft)
    assert problems("reasoning", "So W3RT is the best.", before=True)
