"""Ids that sort by time."""

import multiprocessing
import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.service.schemas.records import first_id_at, new_id


def test_ids_ascend_and_are_uuids_of_version_7():
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert {(UUID(one).version, UUID(one).variant) for one in ids} == {(7, "specified in RFC 4122")}


def test_an_id_knows_its_time():
    before = time.time()
    assert before - 0.002 <= (UUID(new_id()).int >> 80) / 1000 <= time.time() + 0.002


@given(st.floats(0, 2**37), st.floats(0, 2**37))
def test_first_ids_sort_as_their_times(one: float, other: float):
    assert (first_id_at(one) < first_id_at(other)) == (int(one * 1000) < int(other * 1000))


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e300])
def test_times_beyond_all_ids_have_a_first_id_too(seconds: float):
    assert UUID(first_id_at(seconds)).version == 7


def test_forks_do_not_make_the_same_ids():
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        tails = {one[-8:] for ids in pool.map(_some_ids, range(2), 1) for one in ids}
    assert len(tails) == 20


def _some_ids(_: int) -> list[str]:
    return [new_id() for _ in range(10)]
