"""The queue on disk."""

import itertools
import random
from pathlib import Path

import pytest

from gavel.integrations.atropos.queue import (
    GroupQueue,
    RefusedRequest,
    TrainerRegistration,
    Waiting,
    choose_exactly,
)
from tests.integrations.atropos.groups import REGISTRATION, a_group


def reopened(queue: GroupQueue) -> GroupQueue:
    queue.close()
    return GroupQueue(queue.path)


@pytest.fixture
def queue(tmp_path: Path) -> GroupQueue:
    return GroupQueue(tmp_path / "deep" / "queue.sqlite")


def test_accepted_groups_wait_in_order_and_outlive_the_process(queue: GroupQueue):
    assert queue.accept([a_group(0), a_group(1, size=3)]) == [True, True]
    queue.accept([a_group(2, env_id=7)])
    queue = reopened(queue)
    assert [(group.size, group.env_id) for group in queue.waiting] == [(2, None), (3, None), (2, 7)]
    (read, step), *_ = queue.read([queue.waiting[1].id])
    assert (read, step) == (a_group(1, size=3), 0)


def test_a_body_that_is_sent_again_counts_once_even_after_it_was_trained(queue: GroupQueue):
    queue.accept([a_group(0)])
    assert queue.accept([a_group(0), a_group(1)]) == [False, True]
    queue.trained([group.id for group in queue.waiting], step=1)
    queue = reopened(queue)
    assert queue.accept([a_group(0)]) == [False]
    assert queue.waiting == []


def test_a_trained_group_is_gone_and_the_step_is_kept(queue: GroupQueue):
    queue.accept([a_group(0), a_group(1)])
    first, second = queue.waiting
    queue.trained([first.id, 999], step=3)
    queue = reopened(queue)
    assert (queue.waiting, queue.step) == ([second], 3)
    queue.accept([a_group(5)])
    assert queue.read([queue.waiting[-1].id])[0][1] == 3


def test_a_batch_that_was_not_delivered_is_lent_again(queue: GroupQueue):
    queue.register(TrainerRegistration.model_validate(REGISTRATION))
    queue.accept([a_group(number) for number in range(4)])
    assert queue.lend() == (1, [a_group(0), a_group(1)])
    queue = reopened(queue)
    assert queue.lend() == (1, [a_group(0), a_group(1)])
    assert len(queue.waiting) == 2
    queue.delivered(1)
    queue = reopened(queue)
    assert queue.lend() == (2, [a_group(2), a_group(3)])


def test_a_reset_forgets_all_but_never_a_batch_number(queue: GroupQueue):
    queue.register(TrainerRegistration.model_validate(REGISTRATION | {"starting_step": 5}))
    queue.accept([a_group(0), a_group(1), a_group(2)])
    assert queue.lend() is not None
    assert queue.step == 6
    queue.reset()
    queue = reopened(queue)
    assert (queue.waiting, queue.lend(), queue.step) == ([], None, 0)
    assert queue.peers.trainer is None
    queue.register(TrainerRegistration.model_validate(REGISTRATION))
    queue.accept([a_group(3), a_group(4)])
    assert queue.lend() == (2, [a_group(3), a_group(4)])


def test_a_second_process_is_refused(queue: GroupQueue, monkeypatch: pytest.MonkeyPatch):
    queue.accept([a_group(0)])
    monkeypatch.setattr("gavel.integrations.atropos.queue._BUSY_SECONDS", 0.05)
    with pytest.raises(RefusedRequest, match="locked"):
        GroupQueue(queue.path)


def waiting(*sizes: int, env: int | None = None) -> list[Waiting]:
    return [Waiting(number, env, size) for number, size in enumerate(sizes)]


def sizes(chosen: list[Waiting] | None) -> list[int] | None:
    return None if chosen is None else [group.size for group in chosen]


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
