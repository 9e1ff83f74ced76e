"""Groups whose members are spread over processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.integrations.trl.reward import Keyed, groups_of, judge_on_all_ranks


@given(st.lists(st.integers(0, 3)), st.one_of(st.none(), st.integers(1, 4)))
def test_every_member_is_in_one_group_of_its_key(keys: list[int], size: int | None):
    groups = groups_of([Keyed(key, number) for number, key in enumerate(keys)], size)
    assert sorted(number for group in groups for number in group) == list(range(len(keys)))
    assert all(len({keys[number] for number in group}) == 1 for group in groups)
    assert all(group == sorted(group) for group in groups)
    if size is None:
        assert len(groups) == len(set(keys))


def test_one_process_is_the_only_rank():
    def judge(groups: list[list[int]]) -> list[list[int]]:
        return [[10 * member for member in group] for group in groups]

    assert judge_on_all_ranks(lambda: [Keyed("x", 1), Keyed("y", 2), Keyed("x", 3)], judge) == [10, 20, 30]
    assert judge_on_all_ranks(list, judge) == []


def test_an_error_is_raised_as_it_is():
    def judge(groups: list[list[int]]) -> list[list[int]]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        judge_on_all_ranks(lambda: [Keyed("x", 1)], judge)
