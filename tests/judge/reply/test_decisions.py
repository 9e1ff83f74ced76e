import json

import pytest

from gavel.judge.reply.decisions import read_decisions
from gavel.judge.reply.errors import VerdictError
from gavel.judge.rubric import Rubric

RUBRIC = Rubric("Be good.")


def reply(*answers: object) -> str:
    return json.dumps({"answers": answers})


def answer(name: str, *probabilities: float) -> dict[str, object]:
    return {"name": name, "probabilities": list(probabilities) or None}


def test_answers_are_matched_by_name_in_any_order():
    verdict = read_decisions(reply(answer("Y", 0, 1), answer("X", 1, 0)), RUBRIC, ["X", "Y"], 2)
    assert [(label, scored.score) for label, scored in verdict.scores.items()] == [("X", 0.0), ("Y", 1.0)]


def test_an_answer_of_nobody_is_left_out():
    verdict = read_decisions(reply(answer("Z", 0, 1), answer("X", 1, 0)), RUBRIC, ["X"], 2)
    assert list(verdict.scores) == ["X"]


def test_two_answers_to_one_question_are_none():
    verdict = read_decisions(reply(answer("X", 0, 1), answer("X", 1, 0), answer("Y", 0, 1)), RUBRIC, ["X", "Y"], 2)
    assert verdict.unread == {"X": "its question has two answers"}


@pytest.mark.parametrize("text", ["", "no", "[]", "{}", '{"answers": 1}', '{"answers": [1]}', reply(answer("X"))])
def test_what_holds_no_answer_cannot_be_used(text):
    with pytest.raises(VerdictError):
        read_decisions(text, RUBRIC, ["X"], 2)
