"""The packed row against the set of prefixes, which is what a trie is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.data.packing import assign_to_ranks, micro_batches, pack, unique_tokens
from gavel.trainer.data.token_sequences import TokenError, TokenSequence


@st.composite
def sequences(draw: st.DrawFn) -> TokenSequence:
    """Few different tokens, so that prefixes are shared; the first is never sampled."""
    ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))
    sampled = [False, *draw(st.lists(st.booleans(), min_size=len(ids) - 1, max_size=len(ids) - 1))]
    temperatures = [draw(st.sampled_from([0.5, 1.0])) if own else 1.0 for own in sampled]
    return TokenSequence(ids, sampled, [0.0] * len(ids), temperatures)


batches = st.lists(sequences(), min_size=1, max_size=8)


def prefixes(batch):
    return {tuple(tokens.token_ids[: end + 1]) for tokens in batch for end in range(len(tokens.token_ids))}


@given(batches)
def test_every_sequence_is_found_again_on_its_path(batch):
    packed = pack(batch)
    for tokens, path in zip(batch, packed.paths, strict=True):
        assert packed.token_ids[path].tolist() == tokens.token_ids
        assert packed.positions[path].tolist() == list(range(len(tokens.token_ids)))


@given(batches)
def test_each_prefix_stands_in_the_row_once(batch):
    packed = pack(batch)
    places = {
        tuple(t.token_ids[: n + 1]): place
        for t, p in zip(batch, packed.paths, strict=True)
        for n, place in enumerate(p)
    }
    assert len(packed.token_ids) == len(prefixes(batch)) == unique_tokens(batch)
    assert sorted(places.values()) == list(range(len(packed.token_ids)))


@given(batches)
def test_a_token_sees_exactly_its_own_path_through_the_segments(batch):
    packed = pack(batch)
    seen = {}
    for segment in packed.segments:
        assert segment.start < segment.stop <= segment.end
        for place in range(segment.start, segment.end):
            seen.setdefault(place, []).extend(range(segment.start, min(place + 1, segment.stop)))
    for path in packed.paths:
        for depth, place in enumerate(path):
            assert seen[place] == path[: depth + 1].tolist()


@given(batches)
def test_a_run_without_a_fork_is_one_segment(batch):
    after = {}
    for prefix in prefixes(batch):
        after.setdefault(prefix[:-1], set()).add(prefix)
    heads = {prefix for followers in after.values() if len(followers) > 1 for prefix in followers}
    heads |= after[()]
    assert len(pack(batch).segments) == len(heads)


@given(batches)
def test_each_trained_token_keeps_its_predictor_target_and_temperature(batch):
    packed = pack(batch)
    found = [(packed.predictors[s], packed.targets[s], packed.temperatures[s]) for s in packed.scored]
    expected = [
        (path[place - 1], tokens.token_ids[place], tokens.temperatures[place])
        for tokens, path in zip(batch, packed.paths, strict=True)
        for place, own in enumerate(tokens.sampled)
        if own
    ]
    assert found == expected
    assert len(packed.predictors) == len(set(expected))


def test_nothing_predicts_the_first_token_of_a_sequence():
    with pytest.raises(TokenError, match="begins with a sampled token"):
        pack([TokenSequence([4, 5], [True, True], [0.0, 0.0], [1.0, 1.0])])


@given(batches, st.data(), st.integers(1, 40))
def test_a_plan_covers_all_and_keeps_to_its_limit(batch, data, most):
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(batch), max_size=len(batch)))
    planned = micro_batches(batch, groups, most)
    assert sorted(index for indices in planned for index in indices) == list(range(len(batch)))
    for indices in planned:
        assert len(indices) == 1 or unique_tokens([batch[index] for index in indices]) <= most


@given(batches, st.data(), st.integers(1, 40))
def test_a_group_that_fits_is_not_cut(batch, data, most):
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(batch), max_size=len(batch)))
    planned = micro_batches(batch, groups, most)
    for group in set(groups):
        members = {index for index, own in enumerate(groups) if own == group}
        if unique_tokens([batch[index] for index in members]) <= most:
            assert sum(bool(members & set(indices)) for indices in planned) == 1


def test_the_largest_micro_batch_runs_first_and_small_groups_share_one():
    def alone(first: int, length: int) -> TokenSequence:
        return TokenSequence([first] * length, [False] * length, [0.0] * length, [1.0] * length)

    batch = [alone(1, 3), alone(2, 9), alone(3, 4), alone(4, 30)]
    assert micro_batches(batch, [0, 1, 2, 3], 10) == [[3], [1], [2, 0]]


@given(batches, st.data(), st.integers(1, 5))
def test_whole_groups_are_spread_so_that_no_part_is_heavier_than_another_by_more_than_a_group(batch, data, count):
    groups = data.draw(st.lists(st.integers(0, 4), min_size=len(batch), max_size=len(batch)))
    parts = assign_to_ranks(batch, groups, count)
    assert len(parts) == count
    assert sorted(index for part in parts for index in part) == list(range(len(batch)))
    sizes = {
        group: unique_tokens([batch[at] for at, own in enumerate(groups) if own == group]) for group in set(groups)
    }
    held = [{groups[index] for index in part} for part in parts]
    assert sum(len(each) for each in held) == len(sizes)
    loads = [sum(sizes[group] for group in each) for each in held]
    assert max(loads) - min(loads) <= max(sizes.values())
