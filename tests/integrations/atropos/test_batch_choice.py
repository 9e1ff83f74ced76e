"""Which groups make a batch."""

import itertools
import random

import pytest

from gavel.integrations.atropos.queue import Waiting, choose_at_least, choose_exactly


def waiting(*sizes: int, env: int | None = None) -> list[Waiting]:
    return [Waiting(number, env, size) for number, size in enumerate(sizes)]


def sizes(chosen: list[Waiting] | None) -> list[int] | None:
    return None if chosen is None else [group.size for group in chosen]


@pytest.mark.parametrize(
    ("queue", "batch", "expected"),
    [
        ([4, 8, 4], 8, [4, 4]),
        ([6, 8], 8, [8]),
        ([6], 8, None),
        ([], 8, None),
        ([16, 4, 4], 8, [4, 4]),
        ([3, 3, 3], 8, None),
        ([2, 2, 2, 2, 8], 8, [2, 2, 2, 2]),
    ],
)
def test_a_batch_is_whole_groups_and_exactly_as_large_as_asked(
    queue: list[int], batch: int, expected: list[int] | None
):
    assert sizes(choose_exactly(waiting(*queue), batch)) == expected


def test_the_oldest_group_that_fits_is_always_taken():
    chance = random.Random(0)
    for _ in range(300):
        queue = waiting(*(chance.randint(1, 6) for _ in range(chance.randint(1, 9))))
        batch = chance.randint(1, 12)
        possible = [
            combination
            for length in range(1, len(queue) + 1)
            for combination in itertools.combinations(queue, length)
            if sum(group.size for group in combination) == batch
        ]
        oldest = min(([group.id for group in each] for each in possible), default=None)
        chosen = choose_exactly(queue, batch)
        assert (None if chosen is None else [group.id for group in chosen]) == oldest


def test_an_environment_gets_its_least_share_and_is_waited_for():
    first = [Waiting(number, 0, 2) for number in range(4)]
    second = [Waiting(number, 1, 2) for number in range(10, 12)]
    assert choose_exactly(first, 8, {1: 4}) is None
    chosen = choose_exactly([*first, *second], 8, {1: 4})
    assert chosen is not None
    assert [group.id for group in chosen] == [0, 1, 10, 11]


def test_shares_that_whole_groups_overshoot_do_not_block_the_queue():
    queue = [Waiting(0, 0, 6), Waiting(1, 1, 6), Waiting(2, 0, 2), Waiting(3, 1, 2)]
    chosen = choose_exactly(queue, 8, {0: 4, 1: 4})
    assert chosen is not None
    assert sum(group.size for group in chosen) == 8


def test_the_learner_takes_the_oldest_until_it_has_enough():
    assert sizes(choose_at_least(waiting(3, 3, 3), 5)) == [3, 3]
    assert sizes(choose_at_least(waiting(16, 3), 5)) == [16]
    assert choose_at_least(waiting(3), 5) is None
