"""The queue on disk."""

from pathlib import Path

import pytest

from gavel.integrations.atropos.queue import EnvRegistration, GroupQueue, RefusedRequest
from tests.integrations.atropos.groups import a_group
from tests.trainer.conftest import Letters


def reopened(queue: GroupQueue) -> GroupQueue:
    queue.close()
    return GroupQueue(queue.path, Letters())


@pytest.fixture
def queue(tmp_path: Path) -> GroupQueue:
    return GroupQueue(tmp_path / "deep" / "queue.sqlite", Letters())


def test_accepted_groups_wait_in_order_outlive_the_process_and_count_once_even_after_they_were_trained(queue):
    assert queue.accept([a_group(0), a_group(1, size=3)]) == [True, True]
    queue.accept([a_group(2, env_id=7)])
    queue = reopened(queue)
    assert [(group.size, group.env_id) for group in queue.waiting] == [(2, None), (3, None), (2, 7)]
    (read, step), *_ = queue.read([queue.waiting[1].id])
    assert (read, step) == (a_group(1, size=3), 0)
    assert queue.accept([a_group(0), a_group(3)]) == [False, True]  # sent again it counts once
    queue.trained([group.id for group in queue.waiting], step=1)
    queue = reopened(queue)
    assert queue.accept([a_group(0)]) == [False]
    assert queue.waiting == []


def test_a_trained_group_is_gone_and_environments_are_kept(queue: GroupQueue):
    asked = EnvRegistration(max_token_length=8, desired_name="desk", group_size=2)
    assert [queue.register_env(asked) for _ in range(2)] == [(0, "desk_0"), (1, "desk_1")]
    queue.accept([a_group(0), a_group(1)])
    first, second = queue.waiting
    queue.trained([first.id, 999], step=3)
    queue.accept([a_group(5)])
    queue = reopened(queue)
    assert queue.waiting[0] == second
    assert queue.read([queue.waiting[-1].id]) == [(a_group(5), 3)]
    assert queue.disconnect_env(1)
    assert not queue.disconnect_env(2)
    assert [(each.id, each.connected) for each in queue.environments] == [(0, True), (1, False)]


def test_a_second_process_is_refused(queue: GroupQueue, monkeypatch: pytest.MonkeyPatch):
    queue.accept([a_group(0)])
    monkeypatch.setattr("gavel.integrations.atropos.queue._BUSY_SECONDS", 0.05)
    with pytest.raises(RefusedRequest, match="locked"):
        GroupQueue(queue.path, Letters())
