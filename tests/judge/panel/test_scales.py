import math
from collections.abc import Hashable
from statistics import fmean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.audit.agreement import kendall_tau
from gavel.judge.panel.aggregate import (
    AggregateScore,
    Answer,
    JurorScores,
    equate,
    groupwise,
    reliability,
    stretch_factors,
    with_spreads,
)
from gavel.judge.panel.modes import LARGEST_WHOLE, block_rounds
from gavel.judge.panel.standard_errors import NoisyVote


def vote(scale: Hashable, member: int, score: float, weight: float = 1.0) -> NoisyVote:
    return NoisyVote(member, scale, 0, 0.0, score, weight)


@given(st.integers(LARGEST_WHOLE + 1, 70), st.integers(2, 4), st.randoms(use_true_random=False))
def test_without_noise_equating_finds_every_block_s_offset(members, count, random):
    shown = [block for blocks in block_rounds(members, count, "seed") for block in blocks]
    truth = [random.uniform(0, 1) for _ in range(members)]
    gained = [random.uniform(-0.3, 0.3) for _ in shown]
    points = [vote(n, m, truth[m] + gained[n], weight=1 + n % 3) for n, block in enumerate(shown) for m in block]
    offsets = equate(points)
    differences = [gained[n] - offsets[n] for n in range(len(shown))]
    assert max(differences) - min(differences) < 1e-9
    assert math.fsum(p.weight * offsets[p.scale] for p in points) == pytest.approx(0, abs=1e-9)


def test_scales_on_all_members_are_moved_to_their_common_mean():
    harsh = [vote("harsh", member, score, weight=3.0) for member, score in enumerate((0.1, 0.2, 0.3))]
    kind = [vote("kind", member, score, weight=1.0) for member, score in enumerate((0.9, 0.5, 0.7))]
    assert equate([*harsh, *kind]) == pytest.approx({"harsh": 0.2 - 0.325, "kind": 0.7 - 0.325})


def test_scales_that_no_member_links_keep_their_scores():
    offsets = equate([vote("a", 0, 0.2), vote("a", 1, 0.4), vote("b", 2, 0.9)])
    assert offsets == pytest.approx({"a": 0.0, "b": 0.0})


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


def doubtful(call: int, spread: float | None, juror: int = 0, weight: float = 1.0) -> Answer:
    return Answer(call, juror, weight, {0: 0.5, 1: 0.2}, {} if spread is None else {0: spread, 1: spread})


def errors(*answers: Answer, between: float | None = None, fixed: dict[int, float] | None = None) -> list[float | None]:
    scores = {member: AggregateScore(0.5, between) for member in (0, 1)}
    found = with_spreads(scores, answers, fixed or {})
    return [score.standard_error for score in found.values() if isinstance(score, AggregateScore)]


def test_one_call_has_the_spread_as_its_error():
    assert errors(doubtful(0, 0.1)) == pytest.approx([0.1, 0.1])


def test_more_calls_of_one_juror_have_the_same_doubts():
    assert errors(doubtful(0, 0.1), doubtful(1, 0.1), doubtful(2, 0.1)) == pytest.approx([0.1, 0.1])
    assert errors(doubtful(0, 0.0), doubtful(1, 0.2)) == pytest.approx([math.sqrt(0.02)] * 2)


def test_differences_between_orders_are_added():
    assert errors(doubtful(0, 0.3), doubtful(1, 0.3), between=0.4) == pytest.approx([0.5, 0.5])


def test_the_doubts_of_jurors_are_their_own():
    assert errors(doubtful(0, 0.1), doubtful(1, 0.1, juror=1)) == pytest.approx([0.1 / math.sqrt(2)] * 2)
    assert errors(doubtful(0, 0.1, weight=3), doubtful(1, 0.0, juror=1)) == pytest.approx([0.075, 0.075])


def test_spreads_are_put_on_the_scale_of_the_anchors():
    assert errors(doubtful(0, 0.1), fixed={0: 0.8, 1: 0.2}) == pytest.approx([0.2, 0.2])


def test_scores_in_words_are_left_as_they_are():
    assert errors(doubtful(0, None), between=0.4) == [0.4, 0.4]
    assert with_spreads({0: "no anchor"}, [doubtful(0, 0.1)], {}) == {0: "no anchor"}


def test_the_more_of_an_error_is_known_the_more_degrees_of_freedom_it_has():
    def freedom(between: float, spread: float) -> float | None:
        (score, *_) = with_spreads({0: AggregateScore(0.5, between, 3.0)}, [doubtful(0, spread)], {}).values()
        assert isinstance(score, AggregateScore)
        return score.degrees_of_freedom

    assert freedom(0.1, 0.0) == pytest.approx(3.0)
    assert freedom(0.1, 0.1) == pytest.approx(12.0)
    assert freedom(0.0, 0.1) is freedom(1e-99, 0.1) is None
