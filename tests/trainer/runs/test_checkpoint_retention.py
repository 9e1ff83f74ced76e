"""The newest and the best checkpoints stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.runs.checkpoints import chosen_step, steps_to_keep


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [(1, 1, {4, 1}), (2, 0, {3, 4}), (0, 0, set()), (0, 2, {1, 4}), (9, 9, {1, 2, 3, 4})],
)
def test_the_last_and_the_best_stay(keep_last: int, keep_best: int, kept: set[int]) -> None:
    assert steps_to_keep([1, 2, 3, 4], {1: 0.9, 2: 0.5, 4: 0.7}, keep_last=keep_last, keep_best=keep_best) == kept


def test_the_newer_of_equals_stays_and_what_is_no_number_counts_for_nothing() -> None:
    assert steps_to_keep([1, 2, 3], {1: 0.5, 2: 0.5, 3: None}, keep_last=0, keep_best=1) == {2}


@given(st.dictionaries(st.integers(1, 50), st.floats(0, 1)), st.integers(0, 5), st.integers(0, 5))
def test_no_more_stay_than_were_asked_for(values: dict[int, float], last: int, best: int) -> None:
    saved = sorted(values)
    kept = steps_to_keep(saved, values, keep_last=last, keep_best=best)
    assert set(saved[len(saved) - min(last, len(saved)) :]) <= kept <= set(saved)
    assert len(kept) <= last + best


def test_a_step_is_chosen_by_number_as_the_newest_or_as_the_best_of_a_split():
    rows = [{"step": 1, "split": "val", "reward": 0.9}, {"step": 2, "split": "val", "reward": 0.1}]
    rows.append({"step": 3, "split": "train", "reward": 1.0})
    assert chosen_step([1, 2, 3], rows, "latest", "val/reward") == 3
    assert chosen_step([1, 2, 3], rows, "best", "val/reward") == 1
    assert chosen_step([2, 3], rows, "best", "val/reward") == 2
    assert chosen_step([3], rows, "best", "val/reward") is None
    assert chosen_step([], rows, "latest", "val/reward") is None
    assert chosen_step([1], rows, 7, "val/reward") == 7
