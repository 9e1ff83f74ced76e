import math
from statistics import fmean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.audit.agreement import kendall_tau
from gavel.judge.panel.aggregate import Answer, groupwise
from gavel.judge.panel.jury_scale import JurorScores, reliability, stretch_factors

TRUTH = [0.1, 0.3, 0.45, 0.6, 0.75, 0.9, 0.2, 0.5]
a_jury = st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=2, max_size=4)


def by_the_formula(scores: list[JurorScores], weights: list[float]) -> list[float]:
    """The docstring of `stretch_factors`, word for word, for jurors with unequal scores."""
    logs = [math.log(variance(own.means)) for own in scores]
    shared = sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)
    sampling = [2 / (len(own.means) - 1) for own in scores]
    true = max(0.0, variance(logs) - fmean(sampling))
    mean_r = sum(w * own.reliability for w, own in zip(weights, scores, strict=True)) / sum(weights)
    factors: list[float] = []
    for own, log, error in zip(scores, logs, sampling, strict=True):
        drawn = math.exp(shared + true / (true + error) * (log - shared)) ** 0.5
        factors.append(min(math.exp(shared / 2) / drawn, 4) * own.reliability / mean_r)
    return factors


@given(a_jury, st.data())
def test_factors_are_those_of_the_formula(jury: list[list[float]], data: st.DataObject):
    count = len(jury)
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    trust = data.draw(st.lists(st.floats(0.1, 1), min_size=count, max_size=count))
    scores = [JurorScores(own, r) for own, r in zip(jury, trust, strict=True)]
    if any(not own.variance for own in scores):
        return
    found = stretch_factors(dict(enumerate(scores)), dict(enumerate(weights)))
    assert list(found.values()) == pytest.approx(by_the_formula(scores, weights))


@given(a_jury, st.floats(0.1, 10), st.floats(-1, 1))
def test_a_common_change_of_scale_changes_no_factor(jury: list[list[float]], scale: float, shift: float):
    def factors(change):
        scores = {n: JurorScores([change(score) for score in own]) for n, own in enumerate(jury)}
        return stretch_factors(scores, dict.fromkeys(scores, 1.0))

    if all(variance(own) > 1e-6 for own in jury):
        assert factors(lambda score: scale * score + shift) == pytest.approx(factors(lambda score: score), rel=1e-6)


def test_jurors_that_differ_by_chance_keep_their_spreads():
    scores = {0: JurorScores([0.1, 0.5, 0.9, 0.4]), 1: JurorScores([0.2, 0.5, 0.8, 0.4])}
    assert stretch_factors(scores, {0: 1, 1: 1}) == {0: 1, 1: 1}


def test_a_juror_that_ties_all_is_not_stretched_and_stretches_nobody():
    scores = {0: JurorScores([0.5] * 8), 1: JurorScores(TRUTH)}
    assert stretch_factors(scores, {0: 1, 1: 1}) == {0: 1, 1: 1}


def test_reliability_is_one_without_a_second_call_and_never_zero():
    assert reliability(0.04, 0.0, 0) == 1
    assert reliability(0.04, 0.01, 6) == pytest.approx(1 - 6 / 8 * 0.25)
    assert reliability(0.0, 0.0, 6) == 1
    assert reliability(0.01, 1.0, 1000) > 0


def answer(call: int, juror: int, scores: list[float], weight: float = 1.0) -> Answer:
    order = range(len(scores)) if call % 2 else reversed(range(len(scores)))
    return Answer(call, juror, weight, {member: scores[member] for member in order})


def test_a_noisy_wide_juror_does_not_drown_a_good_narrow_one():
    narrow = [0.5 + 0.1 * (score - 0.5) for score in TRUTH]
    noise = [1.0, 0.0, 0.2, 0.9, 0.1, 0.3, 0.8, 0.0], [0.0, 0.9, 1.0, 0.1, 0.6, 0.2, 0.1, 1.0]
    answers = [answer(0, 0, narrow), answer(1, 0, narrow), answer(2, 1, noise[0]), answer(3, 1, noise[1])]
    scores = [score.score for _, score in sorted(groupwise(answers, 8).items())]
    means = [fmean((good, good, one, other)) for good, one, other in zip(narrow, *noise, strict=True)]
    assert kendall_tau(list(zip(means, TRUTH, strict=True))) == pytest.approx(-0.14, abs=0.15)
    assert (kendall_tau(list(zip(scores, TRUTH, strict=True))) or 0) > 0.9


@given(st.lists(st.floats(0, 1), min_size=3, max_size=8), st.permutations(range(3)))
def test_a_jury_of_one_keeps_its_scores_and_jurors_may_come_in_any_order(scores: list[float], order: list[int]):
    alone = groupwise([answer(0, 0, scores), answer(1, 0, scores)], len(scores))
    assert [alone[member].score for member in range(len(scores))] == pytest.approx(scores)
    jury = [answer(n, n, [(score + 0.3 * n * m) % 1 for m, score in enumerate(scores)]) for n in range(3)]
    here, there = groupwise(jury, len(scores)), groupwise([jury[n] for n in order], len(scores))
    assert {m: s.score for m, s in there.items()} == pytest.approx({m: s.score for m, s in here.items()}, abs=1e-9)
