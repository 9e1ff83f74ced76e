"""Groups that wait for members, as a list and one by one."""

import dataclasses
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from gavel.judge.service.schemas.records import NewMember
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.group_store import GroupStore
from gavel.judge.service.store.tables import compress, groups, judgements


@pytest.fixture
def store(database_url: str) -> Iterator[GroupStore]:
    database = Database.open(database_url)
    yield GroupStore(database)
    database.close()


def member(group: str, name: str, *, project: str = "", expected: int = 2, seconds: float = 60.0) -> NewMember:
    return NewMember(
        key_id="",
        project=project,
        group=group,
        member=name,
        payload=compress(b'{"messages":[]}'),
        size=15,
        content_hash=name,
        expected=expected,
        options=b"{}",
        settings_hash="",
        judge="a judge",
        retain=True,
        deadline_seconds=seconds,
        on_deadline="judge",
        max_size=1000,
    )


async def test_the_one_that_closes_first_stands_first(store: GroupStore):
    for name, project, seconds in (("late", "a", 90.0), ("soon", "b", 30.0), ("later", "a", 120.0)):
        await store.join(member(name, "m", project=project, seconds=seconds))
    await store.join(member("whole", "m", expected=1))
    assert [group.name for group in await store.waiting(None, 10)] == ["soon", "late", "later"]
    assert [group.name for group in await store.waiting(None, 1)] == ["soon"]
    assert [group.name for group in await store.waiting({"a"}, 10)] == ["late", "later"]
    assert await store.waiting(set(), 10) == []


async def test_an_open_group_has_the_names_of_its_members(store: GroupStore):
    await store.join(member("group", "b", expected=3))
    group = await store.join(member("group", "a", expected=3))
    found = await store.open_group(group.id)
    assert found is not None
    assert found[0].deadline_at == pytest.approx(group.deadline_at, abs=1)
    assert (dataclasses.replace(found[0], deadline_at=group.deadline_at), found[1]) == (group, ["a", "b"])
    await store.join(member("group", "c", expected=3))
    assert await store.open_group(group.id) is None
    assert await store.open_group("no such id") is None


@pytest.mark.parametrize(
    ("judged_seconds_ago", "is_the_same"), [(None, True), (30.0, True), (90.0, False)], ids=["never", "just", "earlier"]
)
async def test_a_member_that_comes_again_has_its_round_until_a_minute_after_it_is_judged(
    judged_seconds_ago: float | None, is_the_same: bool, store: GroupStore
):
    first, second = (dataclasses.replace(member("group", name), begins_rounds=True) for name in "ab")
    await store.join(first)
    whole = await store.join(second)
    assert whole.closed_at is not None
    judged_at = None if judged_seconds_ago is None else time.time() - judged_seconds_ago
    closed = sa.update(groups).values(closed_at=time.time() - 1000)
    judged = sa.update(judgements).values(finished_at=judged_at)
    await store.database.write(lambda connection: (connection.execute(closed), connection.execute(judged)))
    again = await store.join(first)
    assert (again.id == whole.id) is is_the_same
    assert again.is_open is not is_the_same
