import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.columns import problem_with_column

LABELS = ("k7qx", "w3rt", "m4td", "b9fd")
SAID = Said.of(dict(zip(LABELS, (0.9, 0.6, 0.3, 0.1), strict=True)))

AGREE = [
    {"rank": (1, 2, 3, 4)},
    {"place": ("1", "2", "3", "4")},
    {"letter": ("A", "B+", "C", "F")},
    {"verdict": ("pass", "pass", "fail", "fail")},
    {"verdict": ("excellent", "good", "poor", "terrible")},
    {"quality": ("high", "medium", "low", "low")},
    {"passed": (True, True, False, False)},
    {"failed": (False, False, False, True)},
    {"is_best": (True, False, False, False)},
    {"correct": ("yes", "yes", "no", "no")},
    {"raw_score": (9, 6, 3, 1)},
    {"percent": ("90%", "60%", "30%", "10%")},
    {"stars": (5, 3, 2, 1)},
    {"correctness": (1.0, 0.7, 0.2, 0.1)},
    {"correctness": (0.9, 0.7, 0.2, 0.1), "tone": (0.8, 0.9, 0.4, 0.1)},
    {"confidence": (0.9, 0.4, 0.9, 0.8)},
    {"steps": (7, 2, 9, 4)},
    {"tool_calls": (3, 3, 0, 5)},
    {"penalty": (0, 0, 0, 0)},
    {"deduction": (0.1, 0.4, 0.7, 0.9)},
    {"errors": (0, 1, 2, 5)},
    {"index": (1, 2, 3, 4)},
    {"looked_up": (True, False, False, False)},
    {"severity": ("none", "low", "high", "high")},
    {"beats": (["w3rt", "m4td", "b9fd"], ["m4td", "b9fd"], ["b9fd"], [])},
    {"strengths": ("found it", "looked it up", "polite tone", "short")},
]
CONTRADICT = [
    {"rank": (4, 3, 2, 1)},
    {"rank": (1, 3, 2, 4)},
    {"letter": ("F", "C", "B", "A")},
    {"verdict": ("fail", "pass", "pass", "fail")},
    {"verdict": ("fail", "fail", "fail", "fail")},
    {"quality": ("low", "low", "high", "high")},
    {"passed": (False, True, False, False)},
    {"passed": (False, False, False, False)},
    {"failed": (True, False, False, False)},
    {"win": (False, False, False, True)},
    {"is_best": (False, True, False, False)},
    {"correct": ("no", "no", "yes", "yes")},
    {"raw_score": (2, 9, 1, 1)},
    {"percent": (95, 60, 30, 10)},
    {"stars": (1, 3, 4, 5)},
    {"hidden_score": (0.1, 0.3, 0.6, 0.9)},
    {"zorp": (2, 9, 1, 5)},
    {"correctness": (0.1, 0.3, 0.2, 0.9)},
    {"correctness": (0.1, 0.2, 0.8, 0.9), "tone": (0.1, 0.1, 0.5, 0.9)},
    {"confidence": (0, 0, 0, 0)},
    {"evaluated": (False, False, False, False)},
    {"skipped": (True, False, False, False)},
    {"guess": (True, True, True, True)},
    {"weight": (0.1, 1, 1, 1)},
    {"bonus": (0, 0, 0, 0.5)},
    {"penalty": (0.5, 0, 0, 0)},
    {"correction": ("-0.5", "+0.4", "-0.1", "0")},
    {"upper": (5, 5, 5, 5)},
    {"tier": ("bronze", "silver", "gold", "platinum")},
    {"mood": ("glum", "keen", "glum", "wild")},
    {"same_as": ("b9fd", "", "", "")},
    {"trajectory_name": ("w3rt", "k7qx", "m4td", "b9fd")},
    {"beats": ([], ["k7qx"], ["k7qx"], ["k7qx"])},
    {"worse_than": (["w3rt"], [], [], [])},
    {"history": ([0.1, 0.2], [0.3], [0.2], [0.1])},
]


def problems(columns):
    by_key = {key: dict(zip(LABELS, values, strict=True)) for key, values in columns.items()}
    return list(problem_with_column(by_key, ["w3rt", "b9fd", "k7qx", "m4td"], SAID))


@pytest.mark.parametrize("columns", AGREE, ids=str)
def test_a_column_that_goes_with_the_scores_is_harmless(columns):
    assert problems(columns) == []


@pytest.mark.parametrize("columns", CONTRADICT, ids=str)
def test_a_column_against_the_scores_is_a_problem(columns):
    assert problems(columns)


def test_positions_may_be_those_of_the_entries():
    places = {"w3rt": 1, "b9fd": 2, "k7qx": 3, "m4td": 4}
    assert list(problem_with_column({"position": places}, ["w3rt", "b9fd", "k7qx", "m4td"], SAID)) == []
    assert list(problem_with_column({"position": places}, list(LABELS), SAID))
