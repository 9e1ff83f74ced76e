"""Batches over epochs, in an order that a restart repeats."""

from hypothesis import given
from hypothesis import strategies as st

from gavel.compat.art.utils.iterate_dataset import iterate_dataset


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 3), st.integers(0, 20))
def test_every_item_comes_once_an_epoch(size: int, per_step: int, epochs: int, begin: int) -> None:
    whole = list(iterate_dataset(list(range(size)), per_step, epochs, use_tqdm=False))
    for epoch in range(epochs):
        assert sorted(item for batch in whole if batch.epoch == epoch for item in batch.items) == list(range(size))
    assert [batch.step for batch in whole] == list(range(len(whole)))
    assert list(iterate_dataset(list(range(size)), per_step, epochs, begin, use_tqdm=False)) == whole[begin:]


def test_the_order_of_the_first_epoch_is_the_one_that_art_gives() -> None:
    batches = iterate_dataset(["a", "b", "c", "d", "e"], groups_per_step=2, use_tqdm=False)
    assert [batch.items for batch in batches] == [["c", "b"], ["a", "e"], ["d"]]
