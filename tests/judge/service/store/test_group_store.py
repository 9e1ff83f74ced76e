"""Groups that wait for members, as a list and one by one."""

from collections.abc import Iterator

import pytest

from gavel.judge.service.schemas.group_record import NewMember
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.group_store import GroupStore
from gavel.judge.service.store.judgement_rows import compress


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
    assert (found[0], found[1]) == (group, ["a", "b"])
    await store.join(member("group", "c", expected=3))
    assert await store.open_group(group.id) is None
    assert await store.open_group("no such id") is None
