import math

import pytest

from gavel.judge.panel.aggregate import AggregateScore, Answer
from gavel.judge.panel.distribution_spread import with_spreads


def answer(call: int, spread: float | None, juror: int = 0, weight: float = 1.0) -> Answer:
    return Answer(call, juror, weight, {0: 0.5, 1: 0.2}, {} if spread is None else {0: spread, 1: spread})


def errors(*answers: Answer, between: float | None = None, fixed: dict[int, float] | None = None) -> list[float | None]:
    scores = {member: AggregateScore(0.5, between) for member in (0, 1)}
    found = with_spreads(scores, answers, fixed or {})
    return [score.standard_error for score in found.values() if isinstance(score, AggregateScore)]


def test_one_call_has_the_spread_as_its_error():
    assert errors(answer(0, 0.1)) == pytest.approx([0.1, 0.1])


def test_more_calls_of_one_juror_have_the_same_doubts():
    assert errors(answer(0, 0.1), answer(1, 0.1), answer(2, 0.1)) == pytest.approx([0.1, 0.1])
    assert errors(answer(0, 0.0), answer(1, 0.2)) == pytest.approx([math.sqrt(0.02)] * 2)


def test_differences_between_orders_are_added():
    assert errors(answer(0, 0.3), answer(1, 0.3), between=0.4) == pytest.approx([0.5, 0.5])


def test_the_doubts_of_jurors_are_their_own():
    assert errors(answer(0, 0.1), answer(1, 0.1, juror=1)) == pytest.approx([0.1 / math.sqrt(2)] * 2)
    assert errors(answer(0, 0.1, weight=3), answer(1, 0.0, juror=1)) == pytest.approx([0.075, 0.075])


def test_spreads_are_put_on_the_scale_of_the_anchors():
    assert errors(answer(0, 0.1), fixed={0: 0.8, 1: 0.2}) == pytest.approx([0.2, 0.2])


def test_scores_in_words_are_left_as_they_are():
    assert errors(answer(0, None), between=0.4) == [0.4, 0.4]
    assert with_spreads({0: "no anchor"}, [answer(0, 0.1)], {}) == {0: "no anchor"}


def test_the_more_of_an_error_is_known_the_more_degrees_of_freedom_it_has():
    def freedom(between: float, spread: float) -> float | None:
        (score, *_) = with_spreads({0: AggregateScore(0.5, between, 3.0)}, [answer(0, spread)], {}).values()
        assert isinstance(score, AggregateScore)
        return score.degrees_of_freedom

    assert freedom(0.1, 0.0) == pytest.approx(3.0)
    assert freedom(0.1, 0.1) == pytest.approx(12.0)
    assert freedom(0.0, 0.1) is freedom(1e-99, 0.1) is None
