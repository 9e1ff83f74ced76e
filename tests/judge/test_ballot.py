import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge.ballot import mean_and_error, orders

scores = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@given(st.integers(1, 12), st.integers(1, 30), st.text())
def test_every_order_shows_every_member_once(members, count, seed):
    rows = orders(members, count, seed)
    assert len(rows) == count
    assert all(sorted(row) == list(range(members)) for row in rows)


@given(st.integers(1, 12), st.integers(1, 15), st.text())
def test_over_an_even_number_of_orders_every_member_has_the_same_mean_place(members, half, seed):
    rows = orders(members, 2 * half, seed)
    places = [sum(row.index(member) for row in rows) for member in range(members)]
    assert len(set(places)) == 1


@given(st.integers(2, 10), st.text())
def test_over_twice_as_many_orders_as_members_every_member_is_at_every_place_twice(members, seed):
    rows = orders(members, 2 * members, seed)
    for member in range(members):
        assert sorted(row.index(member) for row in rows) == sorted([*range(members)] * 2)


def test_the_first_place_of_a_single_order_is_spread_over_the_members():
    firsts = [orders(4, 1, str(seed))[0][0] for seed in range(2000)]
    assert all(400 < firsts.count(member) < 600 for member in range(4))


def test_the_same_seed_gives_the_same_orders():
    assert orders(8, 4, "seed") == orders(8, 4, "seed")
    assert orders(8, 4, "seed") != orders(8, 4, "other")


@given(scores)
def test_with_equal_weights_mean_and_error_are_the_usual_ones(votes):
    mean, error = mean_and_error(votes, [2.0] * len(votes))
    assert mean == pytest.approx(statistics.fmean(votes))
    assert error == pytest.approx(statistics.stdev(votes) / math.sqrt(len(votes)), abs=1e-12)


@given(scores, st.data())
def test_a_weighted_mean_lies_among_its_votes(votes, data):
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=len(votes), max_size=len(votes)))
    mean, error = mean_and_error(votes, weights)
    assert min(votes) <= mean <= max(votes)
    assert error is not None
    assert error >= 0


def test_one_vote_has_no_standard_error():
    assert mean_and_error([0.7], [3.0]) == (0.7, None)
