import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.panel.aggregate import Answer, group_noise, groupwise
from gavel.judge.panel.modes import group_schedule
from gavel.judge.panel.standard_errors import (
    Noise,
    NoisePrior,
    NoisyVote,
    fit_prior,
    residual_noise,
    shrunk,
    standard_errors,
)
from gavel.judge.stats import centred_positions

PRIOR = NoisePrior(variance=0.01, df=12)


def drawn(members: int, orders: int, seed: int, slope: float = 0.0, square: float = 0.0, noise: float = 0.1):
    """Answers of one juror with these effects of the position, by members in the order shown."""
    random = Random(seed)
    truth = [random.uniform(0.3, 0.7) for _ in range(members)]
    (rows,) = group_schedule(members, [orders], str(seed))
    return [
        Answer(
            call,
            0,
            1.0,
            {
                member: truth[member] + slope * x + square * x * x + noise * random.gauss()
                for x, member in zip(centred_positions(len(row)), row, strict=True)
            },
        )
        for call, row in enumerate(rows)
    ]


def plain(votes: list[tuple[int, float]]) -> list[NoisyVote]:
    return [NoisyVote(member, "a", 0, 0.0, score) for member, score in votes]


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=4), min_size=1, max_size=6))
def test_without_positions_the_noise_is_the_pooled_variance_within_members(votes: list[list[float]]):
    found = residual_noise(plain([(member, score) for member, own in enumerate(votes) for score in own]))
    squares = sum((score - sum(own) / len(own)) ** 2 for own in votes for score in own)
    df = sum(len(own) - 1 for own in votes)
    assert found.df == df
    assert found.variance == pytest.approx(squares / df, abs=1e-9)


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


@given(st.integers(3, 8), st.sampled_from([2, 4, 8]), st.integers(0, 99))
def test_a_line_over_the_positions_is_no_noise(members: int, orders: int, seed: int):
    biased = group_noise(drawn(members, orders, seed, slope=0.2, noise=0.0), members)
    assert biased.variance == pytest.approx(0, abs=1e-12)


PRIORS = st.sampled_from([None, NoisePrior(variance=0, df=50)])


@given(st.integers(2, 8), st.sampled_from([2, 4, 8]), st.integers(0, 99), PRIORS)
def test_votes_that_only_the_position_explains_leave_an_error(members, orders, seed, prior):
    """They may be noise that looks like it: two orders that contradict each other exactly are one line."""
    answers = drawn(members, orders, seed, slope=0.2, noise=0.0)
    errors = [score.standard_error or 0 for score in groupwise(answers, members, prior).values()]
    scatter = math.sqrt(group_noise(answers, members).without_effects or 0)
    assert all(0 < error < scatter / math.sqrt(orders) for error in errors)


def test_votes_that_agree_leave_no_error():
    answers = [Answer(call, 0, 1.0, dict.fromkeys(range(4), 0.5)) for call in range(2)]
    assert [score.standard_error for score in groupwise(answers, 4).values()] == [0.0] * 4


@given(st.integers(5, 8), st.sampled_from([4, 8]), st.integers(0, 99))
def test_a_square_over_the_positions_is_no_noise_where_the_orders_show_it(members: int, orders: int, seed: int):
    found = group_noise(drawn(members, orders, seed, square=0.2, noise=0.0), members)
    assert found.variance == pytest.approx(0, abs=1e-12)


@given(st.integers(2, 12), st.integers(2, 4), st.integers(0, 99), st.randoms())
def test_errors_do_not_depend_on_the_numbers_of_members_or_the_order_of_calls(members, orders, seed, random):
    answers = drawn(members, orders, seed)
    names = random.sample(range(members), members)
    renamed = [
        Answer(a.call, a.juror, a.weight, {names[member]: score for member, score in a.scores.items()}) for a in answers
    ]
    random.shuffle(renamed)
    here, there = groupwise(answers, members, PRIOR), groupwise(renamed, members, PRIOR)
    for member in here:
        assert there[names[member]].standard_error == pytest.approx(here[member].standard_error, abs=1e-9)
        assert there[names[member]].score == pytest.approx(here[member].score, abs=1e-9)


@given(st.integers(3, 10), st.integers(2, 4), st.integers(0, 99), st.floats(0.1, 1))
def test_errors_grow_with_the_scale_of_the_scores(members: int, orders: int, seed: int, factor: float):
    answers = drawn(members, orders, seed, noise=0.02)
    smaller = [
        Answer(a.call, 0, 1.0, {member: 0.5 + factor * (score - 0.5) for member, score in a.scores.items()})
        for a in answers
    ]
    wide, narrow = group_noise(answers, members), group_noise(smaller, members)
    # The line that is steeper in the middle of the range depends on where the middle is: not at all in a small group.
    if narrow.df == wide.df:
        assert math.sqrt(narrow.variance) == pytest.approx(factor * math.sqrt(wide.variance), rel=0.35, abs=1e-4)


def test_a_member_with_fewer_votes_has_a_larger_error_of_the_same_noise():
    votes = plain([(0, 0.2), (0, 0.4), (1, 0.5), (1, 0.7), (2, 0.9)])
    errors = standard_errors(votes, residual_noise(votes))
    assert errors[0] == pytest.approx((0.1, 2))
    assert errors[1] == pytest.approx((0.1, 2))
    assert errors[2] == pytest.approx((0.1 * math.sqrt(2), 2))


def test_weights_count_as_in_a_weighted_mean():
    votes = [NoisyVote(0, "a", 0, 0.0, 0.2, 3.0), NoisyVote(0, "a", 0, 0.0, 0.4, 1.0), *plain([(1, 0.5), (1, 0.5)])]
    found = residual_noise(votes)
    assert standard_errors(votes, found)[0][0] == pytest.approx(math.sqrt(found.variance * 10 / 16))


def test_what_lost_orders_leave_of_the_position_is_part_of_the_error():
    answers = drawn(6, 4, 1, slope=0.3, noise=0.0)
    balanced = groupwise(answers, 6)
    lost = groupwise(answers[:3], 6)
    most, most_of_lost = (max(score.standard_error or 0 for score in of.values()) for of in (balanced, lost))
    assert most_of_lost > most + 0.02


@pytest.mark.parametrize("orders", [0, 1])
def test_without_a_second_vote_nothing_is_known_of_the_noise(orders: int):
    scores = groupwise(drawn(4, 2, 0)[:orders], 4, PRIOR)
    assert all((s.standard_error, s.degrees_of_freedom) == (None, None) for s in scores.values())


def test_the_prior_adds_its_squares_and_its_degrees_of_freedom():
    assert shrunk(Noise(0.04, 6), PRIOR) == pytest.approx(((6 * 0.04 + 12 * 0.01) / 18, 18))
    assert shrunk(Noise(0.04, 6), None) == (0.04, 6)
    agreeing = [Answer(n, 0, 1.0, dict.fromkeys(row, 0.5)) for n, row in enumerate([(0, 1, 2), (2, 1, 0)])]
    errors = [score.standard_error for score in groupwise(agreeing, 3, PRIOR).values()]
    assert all(error and error > 0.05 for error in errors)


@pytest.mark.parametrize(("true_df", "low", "high"), [(8, 5, 13), (40, 20, 90)])
def test_the_prior_of_many_groups_finds_their_common_noise_and_how_far_they_differ(true_df, low, high):
    rng = np.random.default_rng(1)
    true = 0.01 * rng.chisquare(true_df, 3000) / true_df
    groups = [Noise(float(variance * rng.chisquare(7) / 7), 7) for variance in true]
    prior = fit_prior(groups)
    assert prior is not None
    assert prior.variance == pytest.approx(0.01, rel=0.05)
    assert low < prior.df < high


def test_a_prior_has_at_most_the_degrees_of_freedom_of_its_groups():
    prior = fit_prior([Noise(0.01, 7)] * 3)
    assert prior is not None
    assert prior.variance == pytest.approx(0.01)
    assert prior.df == pytest.approx(21)
    assert fit_prior([Noise(0.0, 0)]) is None
    assert fit_prior([]) is None
    assert fit_prior([Noise(0.0, 7)]) == NoisePrior(variance=0, df=7)
