import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.distribution import Distribution, read_decisions, verdict_of
from gavel.judge.reply.verdict import VerdictError
from gavel.judge.rubric import Criterion, Rubric

WEIGHTS = st.lists(st.floats(0, 1), min_size=2, max_size=10).filter(lambda weights: sum(weights) > 0.1)


@given(WEIGHTS)
def test_mean_and_spread_are_those_of_the_levels(weights):
    probabilities = [weight / math.fsum(weights) for weight in weights]
    found = Distribution.of(probabilities, len(weights))
    levels = [level / (len(weights) - 1) for level in range(len(weights))]
    mean = sum(p * level for p, level in zip(probabilities, levels, strict=True))
    assert found.mean == pytest.approx(mean)
    assert -1e-9 <= found.mean <= 1 + 1e-9
    assert found.spread**2 == pytest.approx(
        sum(p * level**2 for p, level in zip(probabilities, levels, strict=True)) - mean**2, abs=1e-9
    )


@given(WEIGHTS, st.sampled_from([0.5, 0.9, 1.1, 2.0, -1.0]))
def test_what_does_not_sum_to_one_is_no_distribution(weights, factor):
    probabilities = [factor * weight / math.fsum(weights) for weight in weights]
    with pytest.raises(VerdictError):
        Distribution.of(probabilities, len(weights))


@pytest.mark.parametrize(
    "probabilities", [None, [], [1.0], [0.5, 0.5, 0.0], "ab", [math.nan, 1.0], [None, 1.0], ["0.5", 0.5], [math.inf, 0]]
)
def test_what_is_no_list_of_probabilities_is_no_distribution(probabilities):
    with pytest.raises(VerdictError):
        Distribution.of(probabilities, 2)


def test_a_label_is_scored_only_when_all_its_criteria_are():
    rubric = Rubric("", [Criterion("right", "Is right.", 3), Criterion("short", "Is short.", 1)])
    low, high = Distribution((1.0, 0.0)), Distribution((0.0, 1.0))
    verdict = verdict_of({"Xa": high, "Xb": low, "Ya": high, "Yb": "refused", "Za": low}, rubric, ["X", "Y", "Z"])
    assert {label: scored.score for label, scored in verdict.scores.items()} == {"X": 0.75}
    assert verdict.scores["X"].criteria == {"right": 1.0, "short": 0.0}
    assert verdict.unread == {"Y": "refused", "Z": "the model gave no answer"}


def test_without_a_score_there_is_no_verdict():
    with pytest.raises(VerdictError, match="refused"):
        verdict_of({"X": "refused"}, Rubric("Be good."), ["X"])


RUBRIC = Rubric("Be good.")


def decisions(*answers: object) -> str:
    return json.dumps({"answers": answers})


def answer(name: str, *probabilities: float) -> dict[str, object]:
    return {"name": name, "probabilities": list(probabilities) or None}


def test_answers_are_matched_by_name_in_any_order():
    verdict = read_decisions(decisions(answer("Y", 0, 1), answer("X", 1, 0)), RUBRIC, ["X", "Y"], 2)
    assert [(label, scored.score) for label, scored in verdict.scores.items()] == [("X", 0.0), ("Y", 1.0)]


def test_an_answer_of_nobody_is_left_out():
    verdict = read_decisions(decisions(answer("Z", 0, 1), answer("X", 1, 0)), RUBRIC, ["X"], 2)
    assert list(verdict.scores) == ["X"]


def test_two_answers_to_one_question_are_none():
    verdict = read_decisions(decisions(answer("X", 0, 1), answer("X", 1, 0), answer("Y", 0, 1)), RUBRIC, ["X", "Y"], 2)
    assert verdict.unread == {"X": "its question has two answers"}


@pytest.mark.parametrize("text", ["", "no", "[]", "{}", '{"answers": 1}', '{"answers": [1]}', decisions(answer("X"))])
def test_what_holds_no_answer_cannot_be_used(text):
    with pytest.raises(VerdictError):
        read_decisions(text, RUBRIC, ["X"], 2)
