import math
import statistics
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.panel.bradley_terry import PRIOR, Comparison, preference, rate
from gavel.judge.panel.modes import pair_schedule


def test_a_preference_is_a_share_of_a_win():
    told = [preference(1, 0), preference(0.3, 0.3), preference(0.2, 0.6), preference(0, 1)]
    assert told == pytest.approx([1, 0.5, 0.3, 0])


def slow_scores(comparisons: list[Comparison]) -> dict[int, float]:
    """By the minorise-maximise iteration of Hunter (2004): wins over the sum of showings by the pair's strengths."""
    mean_weight = statistics.fmean(c.weight for c in comparisons)
    games = [(c.first, c.second, c.preference, c.weight / mean_weight) for c in comparisons]
    members = sorted({member for first, second, *_ in games for member in (first, second)})
    games += [(member, -1, 0.5, PRIOR) for member in members]
    strengths = dict.fromkeys([*members, -1], 1.0)
    for _ in range(5000):
        for member in members:
            mine = [(p if first == member else 1 - p, w, first + second - member)
                    for first, second, p, w in games if member in (first, second)]  # fmt: skip
            wins = math.fsum(p * w for p, w, _ in mine)
            strengths[member] = wins / math.fsum(w / (strengths[member] + strengths[other]) for _, w, other in mine)
    return {
        member: statistics.fmean(
            strengths[member] / (strengths[member] + strengths[other]) for other in members if other != member
        )
        for member in members
    }


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.randoms(use_true_random=False))
def test_scores_are_those_of_a_slow_and_obvious_fit(members, random):
    comparisons = [
        Comparison(first, second, random.choice((0, 1, random.random())), random.choice((1.0, 3.0)))
        for pairs in pair_schedule(members, [1, 1], "seed")
        for first, second in pairs
    ]
    rated = rate(comparisons)
    assert {member: rating.score for member, rating in rated.items()} == pytest.approx(
        slow_scores(comparisons), abs=1e-6
    )


@given(st.integers(2, 12), st.randoms(use_true_random=False))
def test_scores_are_chances_of_winning_whose_mean_is_a_half(members, random):
    comparisons = [
        Comparison(first, second, random.random()) for first, second in pair_schedule(members, [1], "seed")[0]
    ]
    rated = rate(comparisons)
    assert all(0 < rating.score < 1 for rating in rated.values())
    assert statistics.fmean(rating.score for rating in rated.values()) == pytest.approx(0.5)


def test_who_beats_all_is_ahead_and_still_finite():
    pairs = [Comparison(first, second, float(first < second)) for first, second in pair_schedule(5, [2], "")[0]]
    scores = [rate(pairs)[member].score for member in range(5)]
    assert scores == sorted(scores, reverse=True)
    assert 0.9 < scores[0] < 1
    assert scores[2] == pytest.approx(0.5)


def test_who_beats_strong_members_is_ahead_of_who_beats_weak_ones():
    wins = [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)] * 3 + [(4, 1), (5, 3)]
    rated = rate([Comparison(winner, loser, 1.0) for winner, loser in wins])
    assert rated[4].score > rated[5].score


def test_only_the_ratios_of_weights_count():
    pairs = [(0, 1, 0.9, 1.0), (1, 2, 0.3, 2.0), (2, 0, 0.4, 1.0), (0, 1, 0.6, 2.0)]
    one = rate([Comparison(*pair) for pair in pairs])
    other = rate([Comparison(first, second, p, 50 * weight) for first, second, p, weight in pairs])
    assert [r.score for r in one.values()] == pytest.approx([r.score for r in other.values()])
    assert [r.standard_error for r in one.values()] == pytest.approx([r.standard_error for r in other.values()])


def test_members_that_no_chain_of_comparisons_links_to_the_most_are_not_rated():
    assert set(rate([Comparison(0, 1, 0.9), Comparison(1, 2, 0.9), Comparison(3, 4, 1.0)])) == {0, 1, 2}
    assert rate([Comparison(0, 1, 0.9), Comparison(2, 3, 0.9)]) == {}
    assert rate([]) == {}


def test_as_many_strengths_as_comparisons_leave_no_error_to_be_told():
    assert [rating.standard_error for rating in rate([Comparison(0, 1, 0.9)]).values()] == [None, None]


def soft(difference: float, random: Random) -> float:
    return min(max(0.5 + 0.2 * difference + random.gauss(0, 0.1), 0.0), 1.0)


def hard(difference: float, random: Random) -> float:
    return float(random.random() < 1 / (1 + math.exp(-difference)))


@pytest.mark.slow
@pytest.mark.parametrize("judge", [soft, hard])
@pytest.mark.parametrize("weights", [(1.0,), (1.0, 3.0)])
def test_standard_errors_are_the_scatter_over_repetitions(judge, weights):
    strengths = (-0.8, -0.3, 0.0, 0.2, 0.9)
    random = Random("repetitions")
    ratings = [
        rate(
            [
                Comparison(first, second, judge(strengths[first] - strengths[second], random), weight)
                for weight in weights
                for first, second in pair_schedule(5, [8 // len(weights)], "seed")[0]
            ]
        )
        for _ in range(300)
    ]
    for member in range(5):
        scatter = statistics.stdev(rating[member].score for rating in ratings)
        told = math.sqrt(statistics.fmean((rating[member].standard_error or 0.0) ** 2 for rating in ratings))
        assert told == pytest.approx(scatter, rel=0.2)
