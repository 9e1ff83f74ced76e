import collections
import itertools

from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.bradley_terry import Comparison, rate
from gavel.judge.panel.modes import (
    BLOCK,
    LARGEST_WHOLE,
    OPPONENTS,
    block_rounds,
    orders,
    pair_schedule,
)


@given(st.integers(1, 12), st.integers(1, 30), st.text())
def test_every_order_shows_every_member_once(members, count, seed):
    rows = orders(members, count, seed)
    assert len(rows) == count
    assert all(sorted(row) == list(range(members)) for row in rows)


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


@given(large, st.integers(1, 8), st.text())
def test_each_round_shows_every_member_once_in_blocks_of_about_one_size(members, count, seed):
    cut = block_rounds(members, count, seed)
    assert len(cut) == count
    for blocks in cut:
        assert sorted(member for block in blocks for member in block) == list(range(members))
        assert max(map(len, blocks)) <= BLOCK
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@given(large, st.integers(0, 6), st.text())
def test_any_two_rounds_in_a_row_link_all_members(members, start, seed):
    blocks = [set(block) for blocks in block_rounds(members, start + 2, seed)[start:] for block in blocks]
    linked = blocks[0]
    for _ in blocks:
        linked = linked.union(*(block for block in blocks if block & linked))
    assert linked == set(range(members))


@given(st.integers(2, 8), st.integers(1, 4), st.text())
def test_in_full_blocks_every_member_has_the_same_mean_position(blocks, half, seed):
    places = dict.fromkeys(range(BLOCK * blocks), 0)
    for block in (block for cut in block_rounds(len(places), 2 * half, seed) for block in cut):
        for place, member in enumerate(block):
            places[member] += place
    assert set(places.values()) == {half * (BLOCK - 1)}


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


@given(st.integers(2, 80), st.text())
def test_the_pairs_link_all_members(members, seed):
    [pairs] = pair_schedule(members, [1], seed)
    assert set(rate([Comparison(first, second, 0.5) for first, second in pairs])) == set(range(members))
