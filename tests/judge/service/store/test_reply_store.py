"""The cassette in the service's database: the same behaviour as a cassette's file."""

import asyncio
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from gavel.judge.service.store.database import Database
from gavel.judge.service.store.reply_store import Replies, database_cassette, delete_replies
from gavel.judge.service.store.tables import claims
from gavel.llm.cassette import Cassette
from gavel.llm.cassette_storage import Entry, Question
from gavel.llm.errors import CassetteError
from gavel.llm.types import Reply


def question(text: str) -> Question:
    return Question("m", {"temperature": 0}, {"type": "object"}, [{"role": "user", "content": text}])


@pytest.fixture
def database(database_url: str):
    opened = Database.open(database_url)
    yield opened
    opened.close()


@pytest.fixture
def cassette(database: Database):
    made = database_cassette(database)
    yield made
    made.close()


async def test_a_question_is_asked_once_and_answered_from_the_database_after_a_restart(database_url: str):
    asked = 0

    async def ask() -> Reply:
        nonlocal asked
        asked += 1
        return Reply("\ud800 yes", 3, 4, 0.5, "stop", "m-1")

    for _ in range(2):
        database = Database.open(database_url)
        cassette = database_cassette(database)
        replies = await asyncio.gather(*(cassette.answer(question("why"), ask) for _ in range(5)))
        assert {(reply.text, reply.cost_usd, reply.served_by) for reply in replies} == {("\ud800 yes", 0.5, "m-1")}
        cassette.close()
        database.close()
    assert asked == 1


async def test_a_reply_that_cannot_be_used_is_kept_with_its_repair_only(cassette: Cassette, database: Database):
    async def say(text: str) -> Reply:
        return Reply(text)

    bad = await cassette.answer(question("why"), lambda: say("bad"), lambda reply: False)
    assert await stored(database, question("why").key) == []
    repair = question("why, again")
    await cassette.answer(repair, lambda: say("good"), lambda reply: True, [(question("why"), bad)])
    assert await stored(database, question("why").key) == [("bad", repair.key)]
    assert await stored(database, repair.key) == [("good", "")]
    await database.write(lambda connection: delete_replies(connection, {repair.key}))
    assert await stored(database, question("why").key) == await stored(database, repair.key) == []


async def test_one_process_holds_the_lease_on_a_question(database: Database):
    async def claim(*arguments: str) -> str | None:
        return await database.write(lambda c: Replies(c).claim("k", *arguments))

    assert await claim("one") is None
    assert await claim("other") == "one"
    assert await claim("one") is None
    assert await claim("other", "another") == "one"
    assert await claim("other", "one") is None
    await database.write(lambda c: Replies(c).release("k", "one"))
    assert await claim("third") == "other"
    await database.write(lambda c: Replies(c).release("k", "other"))
    assert await claim("third") is None


@pytest.mark.parametrize("ago", [-3600, 3600])
async def test_a_lease_ends_unless_it_is_renewed_whatever_the_clocks_say(database: Database, ago: float):
    await database.write(lambda c: Replies(c).claim("k", "elsewhere"))
    old = sa.update(claims).values(renewed_at=time.time() - ago)
    await database.write(lambda c: c.execute(old))
    await database.write(lambda c: Replies(c).renew(["k"], "elsewhere"))
    assert await database.write(lambda c: Replies(c).claim("k", "other")) == "elsewhere"
    await database.write(lambda c: c.execute(old))
    assert await database.write(lambda c: Replies(c).claim("k", "other")) is None


async def test_a_reply_is_stored_once(database: Database):
    entry = Entry(question("why"), Reply("yes"))
    for _ in range(2):
        await database.write(lambda c: Replies(c).keep([entry]))
    assert await stored(database, question("why").key) == [("yes", "")]


async def test_a_database_that_is_away_is_an_error_of_the_cassette(tmp_path: Path):
    database = Database.open(str(tmp_path / "service.sqlite"))
    cassette = database_cassette(database)
    database.close()
    with pytest.raises(CassetteError):
        await asyncio.wrap_future(cassette._current_thread().keep([Entry(question("why"), Reply("yes"))]))


async def stored(database: Database, key: str) -> list[tuple[str, str]]:
    found = await database.write(lambda c: Replies(c).replies(key))
    return [(one.reply.text, one.repaired_by) for one in found]
