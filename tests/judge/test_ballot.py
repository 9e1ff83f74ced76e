import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge.ballot import SlotMeans, mean_and_error, orders
from judge.blocks import BLOCK, LARGEST, Point, equate, showings

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


@given(st.integers(2, 10), st.text())
def test_the_forward_rows_of_twice_as_many_orders_as_members_are_a_latin_square(members, seed):
    forward = orders(members, 2 * members, seed)[::2]
    assert all(sorted(column) == list(range(members)) for column in zip(*forward, strict=True))


@given(st.integers(1, 12), st.integers(1, 15), st.text())
def test_every_second_order_is_the_one_before_it_reversed(members, half, seed):
    rows = orders(members, 2 * half, seed)
    assert all(row[::-1] == mirrored for row, mirrored in zip(rows[::2], rows[1::2], strict=True))


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


def test_what_a_place_has_gained_is_known_after_many_ballots():
    slots = SlotMeans()
    for row in orders(4, 64, "seed"):
        slots.add([0.2 + member / 10 - place / 20 for place, member in enumerate(row)])
    assert slots.means == pytest.approx([0.075, 0.025, -0.025, -0.075])
    assert slots.slope == pytest.approx(-0.075)


large = st.integers(LARGEST + 1, 70)


@given(st.integers(1, LARGEST), st.integers(1, 9), st.text())
def test_a_group_that_is_not_large_is_shown_whole(members, count, seed):
    assert showings(members, count, seed) == orders(members, count, seed)


@given(large, st.integers(1, 8), st.text())
def test_each_round_shows_every_member_of_a_large_group_once_in_blocks_of_about_a_size(members, count, seed):
    shown = showings(members, count, seed)
    rounds = max(2, count)
    size = len(shown) // rounds
    for start in range(0, len(shown), size):
        blocks = shown[start : start + size]
        assert sorted(member for block in blocks for member in block) == list(range(members))
        assert max(map(len, blocks)) <= BLOCK
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@given(large, st.integers(1, 8), st.text())
def test_overlaps_link_all_blocks(members, count, seed):
    first, *others = map(set, showings(members, count, seed))
    while others:
        linked = [block for block in others if block & first]
        assert linked
        first = first.union(*linked)
        others = [block for block in others if block not in linked]


@given(st.integers(2, 8), st.integers(1, 4), st.text())
def test_in_full_blocks_every_member_has_the_same_mean_place(blocks, half, seed):
    members = BLOCK * blocks
    places: dict[int, int] = dict.fromkeys(range(members), 0)
    for block in showings(members, 2 * half, seed):
        for place, member in enumerate(block):
            places[member] += place
    assert set(places.values()) == {half * (BLOCK - 1)}


@given(large, st.integers(2, 4), st.randoms(use_true_random=False))
def test_without_noise_equating_finds_every_block_s_offset(members, count, random):
    shown = showings(members, count, "seed")
    truth = [random.uniform(0, 1) for _ in range(members)]
    gained = [random.uniform(-0.3, 0.3) for _ in shown]
    points = [Point(n, m, truth[m] + gained[n], weight=1 + n % 3) for n, block in enumerate(shown) for m in block]
    offsets, fitted = equate(points)
    assert fitted == len(shown) - 1
    differences = [gained[n] - offsets[n] for n in range(len(shown))]
    assert max(differences) - min(differences) < 1e-9
    assert math.fsum(p.weight * offsets[p.scale] for p in points) == pytest.approx(0, abs=1e-9)


def test_scales_on_all_members_are_moved_to_their_common_mean():
    harsh = [Point("harsh", member, score, weight=3.0) for member, score in enumerate((0.1, 0.2, 0.3))]
    kind = [Point("kind", member, score, weight=1.0) for member, score in enumerate((0.9, 0.5, 0.7))]
    assert equate([*harsh, *kind])[0] == pytest.approx({"harsh": 0.2 - 0.325, "kind": 0.7 - 0.325})


def test_scales_that_no_member_links_keep_their_scores():
    offsets, fitted = equate([Point("a", 0, 0.2), Point("a", 1, 0.4), Point("b", 2, 0.9)])
    assert offsets == pytest.approx({"a": 0.0, "b": 0.0})
    assert fitted == 0
