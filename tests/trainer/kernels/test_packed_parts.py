"""The parts of a packed row: together they are every pair of a query and a key that it sees, once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels.packed_parts import FULL, Span, joined_parts, limited_parts, square_parts

tries = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)
spans = st.builds(Span, st.integers(1, 9), st.booleans())


def packed(members: list[list[int]]) -> Packed:
    return pack([TokenSequence(ids, [False] * len(ids), [0.0] * len(ids), [1.0] * len(ids)) for ids in members])


def pairs(row: Packed, parts, span: Span) -> np.ndarray:
    """How often each query meets each key. `[U, U]`"""
    met = np.zeros((len(row.token_ids),) * 2, dtype=int)
    first = span.first_visible(row.positions)
    for part in parts:
        queries, keys = np.arange(len(met))[part.rows, None], np.arange(len(met))[part.keys]
        seen = np.ones((len(queries), keys.size), dtype=bool)
        if part.causal:
            seen = keys - part.keys.start <= queries - part.rows.start
        if part.masked:
            seen = (row.positions[keys] <= row.positions[queries]) & (row.positions[keys] >= first[queries])
        assert seen.any(1).all()
        met[part.rows, part.keys] += seen
    return met


def wanted(row: Packed, span: Span) -> np.ndarray:
    met = np.zeros((len(row.token_ids),) * 2, dtype=int)
    for path in row.paths:
        for depth, place in enumerate(path):
            met[place, path[span.first_visible(depth) : depth + 1]] = 1
    return met


@given(tries)
def test_without_a_limit_each_query_meets_its_path_once(members):
    row = packed(members)
    for parts in (joined_parts, square_parts):
        assert (pairs(row, parts(row.segments), FULL) == wanted(row, FULL)).all()


@pytest.mark.parametrize("block", [1, 3, 512])
@given(members=tries, span=spans)
def test_with_a_limit_each_query_meets_what_its_span_reaches_once(block, members, span):
    row = packed(members)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gavel.trainer.kernels.packed_parts.BLOCK", block)
        found = pairs(row, limited_parts(row.segments, row.positions, span), span)
    assert (found == wanted(row, span)).all()


@given(tries)
def test_a_part_is_marked_as_the_first_of_its_queries(members):
    row = packed(members)
    seen: set[int] = set()
    for part in joined_parts(row.segments):
        queries = set(range(part.rows.start, part.rows.stop))
        assert part.first == (not queries & seen)
        seen |= queries
