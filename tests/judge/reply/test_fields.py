import pytest

from gavel.judge.reply.fields import problem_with
from gavel.judge.reply.forms import Field
from gavel.judge.reply.surroundings import Said
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
    {"correctness": 0.7},
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
