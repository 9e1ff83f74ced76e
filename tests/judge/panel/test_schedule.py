import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.equating import BLOCK, LARGEST, Point, equate, rounds, showings
from gavel.judge.panel.schedule import SlotMeans, mean_and_error, orders

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


@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=2, max_size=20))
def test_the_slope_s_error_is_that_of_the_mean_of_the_ballots_slopes(ballots):
    slots, slopes = SlotMeans(), []
    for scores in ballots:
        slots.add(scores)
        slopes.append((scores[4] - scores[0] + (scores[3] - scores[1]) / 2) / 2.5)
    assert slots.slope == pytest.approx(statistics.fmean(slopes), abs=1e-9)
    assert slots.slope_error == pytest.approx(statistics.stdev(slopes) / math.sqrt(len(slopes)), abs=1e-6)


@pytest.mark.parametrize(
    ("ballots", "gain", "noise", "biased"),
    [
        (50, 0.11, 0.0, True),
        (49, 0.11, 0.0, False),
        (50, -0.11, 0.0, True),
        (50, 0.09, 0.0, False),
        (50, 0.11, 0.4, False),
    ],
)
def test_a_place_bias_must_be_large_and_sure(ballots, gain, noise, biased):
    slots = SlotMeans()
    for number in range(ballots):
        tilt = gain + (noise if number % 2 else -noise)
        slots.add([0.5 - tilt, 0.5, 0.5 + tilt])
    assert slots.is_biased == biased


large = st.integers(LARGEST + 1, 70)


@given(st.integers(1, LARGEST), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.text())
def test_jurors_share_out_the_orders_of_a_group_that_is_not_large(members, counts, seed):
    shown = showings(members, counts, seed)
    assert [len(rows) for rows in shown] == counts
    assert [row for rows in shown for row in rows] == orders(members, sum(counts), seed)


@given(large, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.text())
def test_jurors_share_out_the_rounds_of_a_large_group_at_least_two_to_each(members, counts, seed):
    shown = showings(members, counts, seed)
    for rows, count in zip(shown, counts, strict=True):
        assert sorted(member for row in rows for member in row) == sorted([*range(members)] * max(2, count))
    total = sum(max(2, count) for count in counts)
    cut = rounds(members, total, seed)
    assert [row for rows in shown for row in rows] == [block for blocks in cut for block in blocks]


@given(large, st.integers(1, 8), st.text())
def test_each_round_shows_every_member_once_in_blocks_of_about_one_size(members, count, seed):
    cut = rounds(members, count, seed)
    assert len(cut) == count
    for blocks in cut:
        assert sorted(member for block in blocks for member in block) == list(range(members))
        assert max(map(len, blocks)) <= BLOCK
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@given(large, st.integers(0, 6), st.text())
def test_any_two_rounds_in_a_row_link_all_members(members, start, seed):
    blocks = [set(block) for blocks in rounds(members, start + 2, seed)[start:] for block in blocks]
    linked = blocks[0]
    for _ in blocks:
        linked = linked.union(*(block for block in blocks if block & linked))
    assert linked == set(range(members))


@given(st.integers(2, 8), st.integers(1, 4), st.text())
def test_in_full_blocks_every_member_has_the_same_mean_place(blocks, half, seed):
    places = dict.fromkeys(range(BLOCK * blocks), 0)
    for block in (block for cut in rounds(len(places), 2 * half, seed) for block in cut):
        for place, member in enumerate(block):
            places[member] += place
    assert set(places.values()) == {half * (BLOCK - 1)}


@given(large, st.integers(2, 4), st.randoms(use_true_random=False))
def test_without_noise_equating_finds_every_block_s_offset(members, count, random):
    shown = [block for blocks in rounds(members, count, "seed") for block in blocks]
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
