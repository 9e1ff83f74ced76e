"""The judge models' replies in the service's database: the cassette of its judges.

It does the same as a cassette's file, but the database's writer writes it together with everything else, so that the
replies to many groups are committed at once.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT

from gavel.judge.service.store.database import Database
from gavel.judge.service.store.tables import replies
from gavel.llm.cassette import Cassette, Entry, Question, Storage
from gavel.llm.types import Accept, Reply

_r = replies.c
_REPLIES = (
    sa.select(
        _r.text, _r.prompt_tokens, _r.completion_tokens, _r.cost_usd, _r.finish_reason, _r.served_by, _r.repaired_by
    )
    .where(_r.key == sa.bindparam("question"))
    .order_by(_r.id)
)
_KEEP = insert(replies).on_conflict_do_nothing()
_DELETED_AT_ONCE = 500
"""Max keys in one statement: the databases take some 30,000, and one group judged in pairs may have more."""


asked_by: ContextVar[str] = ContextVar("gavel_asked_by", default="")
"""Id of the API key whose stored replies answer the current judging."""


def database_cassette(database: Database, *, is_shared: bool = False) -> Cassette:
    """The cassette of all judges of the service. Replies are kept per API key, unless they are shared: a cost of
    nothing would show a key what another one has had judged."""
    return Cassette(_DatabaseStorage(database)) if is_shared else _CassetteOfKeys(_DatabaseStorage(database))


class _CassetteOfKeys(Cassette):
    """Separates the same question of two API keys."""

    async def answer(
        self,
        question: Question,
        ask: Callable[[], AbstractAsyncContextManager[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[Entry] = (),
    ) -> Reply:
        return await super().answer(_own(question), ask, accept, [(_own(each), reply) for each, reply in repairs])


def _own(question: Question) -> Question:
    key_id = asked_by.get()
    return replace(question, params={**question.params, "asked_by": key_id}) if key_id else question


class _DatabaseStorage(Storage):
    """A storage that works in the transactions of the database's writer; futures are those of asyncio, which
    `asyncio.wrap_future` accepts too."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def replies(self, key: str) -> "Future[list[Reply]]":
        return cast("Future[list[Reply]]", self._database.begin(lambda connection: find_replies(connection, key)))

    def keep(self, entries: Sequence[Entry]) -> "Future[None]":
        # SQLite's works run in the order in which they come.
        order = "" if self._database.is_sqlite else f"question {entries[-1][0].key}"
        kept = asyncio.ensure_future(self._database.write(lambda connection: keep_replies(connection, entries), order))
        return cast("Future[None]", kept)  # compressed in the writer's thread


def find_replies(connection: sa.Connection, key: str) -> list[Reply]:
    rows = connection.execute(_REPLIES, {"question": key})
    return [Reply(*row[:-1], cached=True, key=key, repaired_by=row[-1]) for row in rows]


def keep_replies(connection: sa.Connection, entries: Sequence[Entry]) -> None:
    connection.execute(_KEEP, [_row(question, reply) for question, reply in entries])


def delete_replies(connection: sa.Connection, keys: Collection[str]) -> None:
    """Deletes the replies to these questions, and the unusable ones that they repaired."""
    left = list(keys)
    while left:
        some, left = left[-_DELETED_AT_ONCE:], left[:-_DELETED_AT_ONCE]
        left += connection.execute(sa.select(_r.key).distinct().where(_r.repaired_by.in_(some))).scalars()
        connection.execute(sa.delete(replies).where(_r.key.in_(some)))
        connection.execute(sa.delete(replies).where(_r.repaired_by.in_(some)))


def _row(question: Question, reply: Reply) -> dict[str, object]:
    same = ("text", "prompt_tokens", "completion_tokens", "cost_usd", "repaired_by")
    return {
        **{name: getattr(reply, name) for name in same},
        "key": question.key,
        "text_hash": hashlib.sha256(reply.text.encode("utf-8", "surrogatepass")).hexdigest(),
        "model": question.model,
        "finish_reason": _plain(reply.finish_reason),
        "served_by": _plain(reply.served_by),
        "replied_at": time.time(),
    }


def _plain(text: str) -> str:
    """Text from a server in a form that every database can hold."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
