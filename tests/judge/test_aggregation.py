import collections
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.audit.agreement import kendall_tau
from gavel.judge.panel.aggregate import AggregateScore, Answer, group_noise, groupwise, with_spreads
from gavel.judge.panel.bradley_terry import PRIOR, Comparison, rate
from gavel.judge.panel.judgements import Ballot, judge_group, judge_members
from gavel.judge.panel.modes import LARGEST_WHOLE, OPPONENTS, block_rounds, group_schedule, orders, pair_schedule
from gavel.judge.panel.standard_errors import NoisePrior, NoisyVote, residual_noise
from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.reply.verdict import Scored
from gavel.judge.stats import PositionBias, centred_positions, order_agreement, score_interval
from gavel.llm.types import Reply
from gavel.scenarios.judgement import Judgement
from tests.judge.groups import saying

TRUTH = [0.1, 0.3, 0.45, 0.6, 0.75, 0.9, 0.2, 0.5]


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


def doubtful(call: int, spread: float | None, juror: int = 0, weight: float = 1.0) -> Answer:
    return Answer(call, juror, weight, {0: 0.5, 1: 0.2}, {} if spread is None else {0: spread, 1: spread})


def errors(*answers: Answer, between: float | None = None, fixed: dict[int, float] | None = None) -> list[float | None]:
    scores = {member: AggregateScore(0.5, between) for member in (0, 1)}
    found = with_spreads(scores, answers, fixed or {})
    return [score.standard_error for score in found.values() if isinstance(score, AggregateScore)]


TENTHS = [doubtful(0, 0.1), doubtful(1, 0.1), doubtful(2, 0.1)]
ERRORS = {
    "one call has the spread as its error": (TENTHS[:1], {}, 0.1),
    "differences between orders are added": ([doubtful(0, 0.3), doubtful(1, 0.3)], {"between": 0.4}, 0.5),
    "the doubts of jurors are their own": ([doubtful(0, 0.1), doubtful(1, 0.1, juror=1)], {}, 0.1 / math.sqrt(2)),
    "by weight": ([doubtful(0, 0.1, weight=3), doubtful(1, 0.0, juror=1)], {}, 0.075),
    "on the scale of the anchors": (TENTHS[:1], {"fixed": {0: 0.8, 1: 0.2}}, 0.2),
}


@pytest.mark.parametrize("case", ERRORS)
def test_the_doubts_of_a_distribution_and_the_differences_of_orders_make_one_error(case):
    answers, options, expected = ERRORS[case]
    assert errors(*answers, **options) == pytest.approx([expected] * 2)


def drawn(members: int, orders: int, seed: int, slope: float = 0.0, noise: float = 0.1):
    """Answers of one juror with this effect of the position, by members in the order shown."""
    random = Random(seed)
    truth = [random.uniform(0.3, 0.7) for _ in range(members)]

    def scores(row: Sequence[int]) -> dict[int, float]:
        places = zip(centred_positions(len(row)), row, strict=True)
        return {member: truth[member] + slope * x + noise * random.gauss() for x, member in places}

    (rows,) = group_schedule(members, [orders], str(seed))
    return [Answer(call, 0, 1.0, scores(row)) for call, row in enumerate(rows)]


def by_least_squares(votes: list[NoisyVote]) -> tuple[float, int]:
    """The sum of squares and the degrees of freedom of the whole model, with one column for each term."""

    def columns(values):
        return np.array([[float(value == one) for one in dict.fromkeys(values)] for value in values])

    scores, jurors = np.array([vote.score for vote in votes]), columns([vote.juror for vote in votes])
    design = np.hstack([columns([vote.member for vote in votes]), columns([vote.scale for vote in votes])])
    of_member = {m: np.mean([v.score for v in votes if v.member == m]) for m in {vote.member for vote in votes}}
    line = np.array([vote.position for vote in votes])
    room = np.array([max(0.0, of_member[vote.member] * (1 - of_member[vote.member])) for vote in votes])
    for effect, left in ((line, 1), (np.array([vote.square for vote in votes]), 4), (line * room, 4)):
        wider = np.hstack([design, jurors * effect[:, None]])
        rank, found = np.linalg.matrix_rank(design), np.linalg.matrix_rank(wider)
        if found == rank + jurors.shape[1] and len(votes) - found >= left:
            design = wider
    fitted = np.linalg.lstsq(design, scores, rcond=None)[0]
    return float(((scores - design @ fitted) ** 2).sum()), len(votes) - int(np.linalg.matrix_rank(design))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 14), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_the_noise_is_that_of_the_whole_least_squares_problem(members, orders, jurors, seed):
    random = Random(seed)
    schedule = group_schedule(members, [orders] * jurors, str(seed))
    votes = [
        NoisyVote(member, (juror, call if len(row) < members else None), juror, x, random.random(), 1.0, x * x - square)
        for juror, rows in enumerate(schedule)
        for call, row in enumerate(rows)
        for square in [float(np.mean(np.square(centred_positions(len(row)))))]
        for x, member in zip(centred_positions(len(row)), row, strict=True)
    ]
    squares, freedom = by_least_squares(votes)
    found = residual_noise(votes)
    assert found.df == max(freedom, 0)
    if freedom > 0:
        assert found.variance * found.df == pytest.approx(squares, abs=1e-8)


PRIORS = st.sampled_from([None, NoisePrior(variance=0, df=50)])


@given(st.integers(2, 8), st.sampled_from([2, 4, 8]), st.integers(0, 99), PRIORS)
def test_votes_that_only_the_position_explains_leave_an_error(members, orders, seed, prior):
    """They may be noise that looks like it: two orders that contradict each other exactly are one line."""
    answers = drawn(members, orders, seed, slope=0.2, noise=0.0)
    errors = [score.standard_error or 0 for score in groupwise(answers, members, prior).values()]
    scatter = math.sqrt(group_noise(answers, members).without_effects or 0)
    assert all(0 < error < scatter / math.sqrt(orders) for error in errors)


def slow_scores(comparisons: list[Comparison]) -> dict[int, float]:
    """By the minorise-maximise iteration of Hunter (2004): wins over the sum of showings by the pair's strengths."""
    mean_weight = fmean(c.weight for c in comparisons)
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

    def chance(one: int, other: int) -> float:
        return strengths[one] / (strengths[one] + strengths[other])

    return {one: fmean(chance(one, other) for other in members if other != one) for one in members}


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.randoms(use_true_random=False))
def test_scores_are_those_of_a_slow_and_obvious_fit(members, random):
    comparisons = [
        Comparison(first, second, random.choice((0, 1, random.random())), random.choice((1.0, 3.0)))
        for pairs in pair_schedule(members, [1, 1], "seed")
        for first, second in pairs
    ]
    rated = {member: rating.score for member, rating in rate(comparisons).items()}
    assert rated == pytest.approx(slow_scores(comparisons), abs=1e-6)


def ballot(order: int, first: float, *, cost: float | None = 0.25) -> Ballot:
    scores = {0: Scored(first, f"said in {order}"), 1: Scored(0.5)}
    return Ballot(order, (1, 0), "m", scores=scores, calls=1, replies=[Reply("", 10, 2, cost)])


def test_scores_that_equating_moves_out_of_range_keep_their_differences():
    trajectories = saying(*"abcdefghijkl").trajectories
    group = canonicalize(dict(enumerate(trajectories)))
    truth = [0.05 * member for member in range(12)]
    blocks = [(range(8), 0.0), (range(4, 12), -0.2), (range(8, 12), -0.2), (range(4), 0.0)]
    ballots = [
        Ballot(order, tuple(row), "m", scores={member: Scored(truth[member] + shift) for member in row})
        for order, (row, shift) in enumerate(blocks)
    ]
    rewards = [judgement.score or 0.0 for judgement in judge_members(trajectories, group, ballots)]
    by_member = [rewards[member.indices[0]] for member in group.members]
    assert [score - by_member[0] for score in by_member] == pytest.approx([0.05 * member for member in range(12)])
    assert 0 <= min(rewards) <= max(rewards) <= 1


DOWN = Ballot(1, (0, 1), "m", problem="down", calls=1)
COSTS = {
    "a price of each": ([ballot(0, 0.1), ballot(1, 0.1)], 0.5),
    "one price is unknown": ([ballot(0, 0.1), ballot(1, 0.1, cost=None)], None),
    "one call came to nothing": ([ballot(0, 0.1), DOWN], None),
    "one call was refused": ([ballot(0, 0.1), replace(DOWN, free_calls=1)], 0.25),
    "the only call was refused": ([replace(DOWN, free_calls=1)], 0),
}


@pytest.mark.parametrize("case", COSTS)
def test_a_cost_is_known_when_the_cost_of_every_call_is(case):
    ballots, cost = COSTS[case]
    trajectories = saying("a", "b").trajectories
    group = canonicalize(dict(enumerate(trajectories)))
    members = judge_members(trajectories, group, ballots)
    whole = judge_group(members, group, ballots)
    assert whole.cost_usd == cost
    assert all((member.score is None) == (len(ballots) == 1) for member in members)
    assert whole.warnings == [f"order 1 is lost: {b.problem}" for b in ballots if b.problem]


def test_an_interval_is_that_of_students_t_and_stays_within_the_scale():
    judgement = Judgement(score=0.5, standard_error=0.1, degrees_of_freedom=4)
    assert score_interval(judgement) == pytest.approx((0.5 - 0.21318, 0.5 + 0.21318), abs=1e-4)
    assert score_interval(Judgement(score=0.5, standard_error=0.1), 0.95) == pytest.approx((0.304, 0.696), abs=1e-3)
    at_the_end = Judgement(score=0.95, standard_error=0.1, degrees_of_freedom=4)
    assert score_interval(at_the_end) == (pytest.approx(0.7368, abs=1e-3), 1.0)


def test_a_bias_must_be_large_and_significant():
    def is_biased(ballots: int, gain: float, noise: float = 0.0) -> bool:
        bias = PositionBias()
        for number in range(ballots):
            tilt = gain + (noise if number % 2 else -noise)
            bias.add([0.5 - tilt, 0.5, 0.5 + tilt])
        return bias.is_biased

    assert [is_biased(50, gain) for gain in (0.11, -0.11, 0.09)] == [True, True, False]
    assert [is_biased(49, 0.11), is_biased(50, 0.11, noise=0.4)] == [False, False]


FOUR = {0: 0.9, 1: 0.6, 2: 0.4, 3: 0.1}
BACK = {0: 0.1, 1: 0.4, 2: 0.6, 3: 0.9}

CASES = {
    "two orders that agree": ([FOUR, FOUR], 1.0),
    "another scale": ([FOUR, {member: score / 10 for member, score in FOUR.items()}], 1.0),
    "two opposed orders": ([FOUR, BACK], -1.0),
    "three against one": ([FOUR, FOUR, FOUR, BACK], 0.0),
    "one order": ([FOUR], None),
    "orders that tie all": ([dict.fromkeys(FOUR, 0.5)] * 2, None),
    "an order that ties all": ([FOUR, dict.fromkeys(FOUR, 0.5)], None),
    "blocks without common pairs": ([{0: 0.9, 1: 0.1}, {1: 0.1, 2: 0.9}], None),
    "blocks with a common pair": ([{0: 0.9, 1: 0.1}, {0: 0.7, 1: 0.3, 2: 1.0}], 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_agreement_is_the_mean_tau_between_orders(case):
    orders, expected = CASES[case]
    assert order_agreement(orders) == expected


@given(st.integers(1, 12), st.integers(1, 15), st.text())
def test_over_an_even_number_of_orders_every_member_has_the_same_mean_position(members, half, seed):
    rows = orders(members, 2 * half, seed)
    places = [sum(row.index(member) for row in rows) for member in range(members)]
    assert len(set(places)) == 1


@given(st.integers(2, 12), st.text())
def test_in_a_whole_square_each_member_follows_each_other_equally_often_and_has_every_position(members, seed):
    times = 1 + members % 2  # an odd number takes two squares
    rows = orders(members, times * members, seed)
    follows = collections.Counter(pair for row in rows for pair in itertools.pairwise(row))
    assert follows == dict.fromkeys(itertools.permutations(range(members), 2), times)
    places = collections.Counter((place, member) for row in rows for place, member in enumerate(row))
    assert places == dict.fromkeys(itertools.product(range(members), repeat=2), times)


large = st.integers(LARGEST_WHOLE + 1, 70)


@given(large, st.integers(0, 6), st.text())
def test_any_two_rounds_in_a_row_link_all_members(members, start, seed):
    blocks = [set(block) for blocks in block_rounds(members, start + 2, seed)[start:] for block in blocks]
    linked = blocks[0]
    for _ in blocks:
        linked = linked.union(*(block for block in blocks if block & linked))
    assert linked == set(range(members))


counts = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(st.integers(2, OPPONENTS + 1), counts, st.text())
def test_up_to_nine_members_all_pairs_are_shown_to_each_juror_as_often_as_it_has_orders(members, counts, seed):
    for pairs, count in zip(pair_schedule(members, counts, seed), counts, strict=True):
        shown = sorted(tuple(sorted(pair)) for pair in pairs)
        assert shown == sorted([*itertools.combinations(range(members), 2)] * count)


@given(st.integers(OPPONENTS + 2, 80), st.text())
def test_in_a_larger_group_every_member_meets_eight_others_and_is_first_half_the_time(members, seed):
    [pairs] = pair_schedule(members, [1], seed)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    for member in range(members):
        assert sum(first == member for first, _ in pairs) == OPPONENTS // 2
        assert sum(second == member for _, second in pairs) == OPPONENTS // 2
