"""The judge models' replies in the service's database: the cassette of its judges.

It does the same as a cassette's file, but the database's writer writes it together with everything else, so that the
replies to many groups are committed at once.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gavel.base.processes import holder_name, is_dead
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.tables import claims, compress, decompress, replies
from gavel.llm.cassette import Cassette, Entry, Question, Storage, StorageThread, StoredReply
from gavel.llm.errors import CassetteError
from gavel.llm.types import Accept, Reply

LEASE_SECONDS = 10.0
"""Seconds without a heartbeat after which a claim on a question expires."""
_RENEWAL_SECONDS = 2.0
_T = TypeVar("_T")
_r, _k = replies.c, claims.c
_REPLIES = (
    sa.select(
        _r.text, _r.prompt_tokens, _r.completion_tokens, _r.cost_usd, _r.finish_reason, _r.served_by, _r.repaired_by
    )
    .where(_r.key == sa.bindparam("question"))
    .order_by(_r.id)
)
_KEEP = {
    "sqlite": sqlite.insert(replies).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(replies).on_conflict_do_nothing(),
}


class database_time(FunctionElement[float]):
    """Unix seconds when a statement runs, by the clock that all processes of a database share: on SQLite this
    machine's, to the millisecond; on PostgreSQL the server's."""

    type: sa.types.TypeEngine[float] = sa.Double()
    inherit_cache = True


@compiles(database_time, "sqlite")
def _of_sqlite(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_time, "postgresql")
def _of_postgresql(*_: object, **__: object) -> str:
    return "CAST(EXTRACT(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"


_BY, _DEAD = sa.bindparam("by", type_=sa.Text), sa.bindparam("dead", type_=sa.Text)


def _claim(insert: Any) -> sa.Executable:
    values: dict[str, Any] = {"key": sa.bindparam("question"), "holder": _BY, "renewed_at": database_time()}
    is_free = sa.or_(_k.holder.in_([_BY, _DEAD]), sa.func.abs(database_time() - _k.renewed_at) > LEASE_SECONDS)
    taken = {"holder": _BY, "renewed_at": database_time()}
    new = insert(claims).values(values)
    return new.on_conflict_do_update(index_elements=[_k.key], set_=taken, where=is_free).returning(_k.key)


_CLAIM = {"sqlite": _claim(sqlite.insert), "postgresql": _claim(postgresql.insert)}


_RELEASE = sa.delete(claims).where(_k.key == sa.bindparam("question"), _k.holder == sa.bindparam("by"))
_HOLDER = sa.select(_k.holder).where(_k.key == sa.bindparam("question"))
_DELETED_AT_ONCE = 500
"""Max keys in one statement: the databases take some 30,000, and one group judged in pairs may have more."""


asked_by: ContextVar[str] = ContextVar("gavel_asked_by", default="")
"""Id of the API key whose stored replies answer the current judging."""


def database_cassette(database: Database, *, is_shared: bool = False) -> Cassette:
    """The cassette of all judges of the service. Replies are kept per API key, unless they are shared: a cost of
    nothing would show a key what another one has had judged."""
    return Cassette(_WriterThread(database)) if is_shared else _CassetteOfKeys(_WriterThread(database))


class _CassetteOfKeys(Cassette):
    """Separates the same question of two API keys."""

    async def answer(
        self,
        question: Question,
        ask: Callable[[], Awaitable[Reply]],
        accept: Accept | None = None,
        repairs: Sequence[tuple[Question, Reply]] = (),
    ) -> Reply:
        return await super().answer(_own(question), ask, accept, [(_own(each), reply) for each, reply in repairs])


def _own(question: Question) -> Question:
    key_id = asked_by.get()
    return replace(question, params={**question.params, "asked_by": key_id}) if key_id else question


class _WriterThread(StorageThread):
    """A storage that works in the transactions of the database's writer.

    Only one process of a database asks a question at a time: it claims it, and renews the claim until the reply is
    stored, while the others wait. Claims end with their process, so they need not survive a power failure.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(_no_storage)
        self._database = database
        self._holder = holder_name()
        self._claimed: set[str] = set()
        self._closing = threading.Event()
        self._renewing: threading.Thread | None = None
        self.commits_in_order = database.is_sqlite  # a judgement commits after the replies that it was read from

    def submit(self, work: Callable[[Storage], _T]) -> "Future[_T]":
        """Submits work; in an event loop the future is one of asyncio, which `asyncio.wrap_future` accepts too."""
        return self._submit(work, durable=False)

    def _submit(self, work: "Callable[[Replies], _T]", key: str = "", *, durable: bool = True) -> "Future[_T]":
        """`key`: of a question whose rows other processes may write too."""
        # On SQLite works run in order: a judgement's replies are there before it is stored, or erased.
        order = f"question {key}" if key and not self._database.is_sqlite else ""

        def of_connection(connection: sa.Connection) -> _T:
            return work(Replies(connection))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._database.submit(of_connection)
        return cast("Future[_T]", self._database.begin(of_connection, order, durable=durable))

    def look(self, key: str, unusable: int) -> "Future[tuple[list[StoredReply], bool]]":
        def work(storage: Replies) -> tuple[list[StoredReply], bool]:
            stored = storage.replies(key)
            if len(stored) > unusable:
                return stored, False
            other = storage.claim(key, self._holder)
            if other and is_dead(other):
                other = storage.claim(key, self._holder, dead=other)
            if other is not None:
                return stored, False
            if not self._database.is_sqlite and len(stored := storage.replies(key)) > unusable:
                storage.release(key, self._holder)  # a reply was stored between the two statements
                return stored, False
            self._claimed.add(key)
            return stored, True

        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="claims", daemon=True)
            self._renewing.start()
        return self._submit(work, key, durable=False)

    def keep(self, entries: Sequence[Entry]) -> "Future[None]":
        key = entries[-1].question.key

        def work(storage: Replies) -> None:
            storage.keep(entries)  # compressed in the writer's thread
            storage.release(key, self._holder)
            self._claimed.discard(key)

        return self._submit(work, key)

    def release(self, key: str) -> None:
        def work(storage: Replies) -> None:
            storage.release(key, self._holder)  # unconditional: a transaction may run twice
            self._claimed.discard(key)

        self._submit(work, key, durable=False)

    def _renew(self) -> None:
        while not self._closing.wait(_RENEWAL_SECONDS):
            keys = tuple(self._claimed)
            try:
                if keys:
                    self._submit(lambda storage, keys=keys: storage.renew(keys, self._holder)).result()
            except CassetteError as error:  # the claims expire, and a question may be paid for twice
                logging.getLogger(__name__).warning("claims on questions are not renewed: %s", error.message)
            except RuntimeError:  # the interpreter exits
                return

    def close(self) -> None:
        """Does nothing: the database stays open."""
        self._closing.set()


def _no_storage() -> Storage:
    raise AssertionError("the database's writer has the storage")


class Replies:
    """The replies within one transaction; a `Storage`."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect.name

    def replies(self, key: str) -> list[StoredReply]:
        return _stored(self._connection.execute(_REPLIES, {"question": key}), key)

    def keep(self, entries: Sequence[Entry]) -> None:
        self._connection.execute(_KEEP[self._dialect], [_row(entry) for entry in entries])

    def models(self) -> set[str]:
        return set(self._connection.execute(sa.select(_r.model).distinct()).scalars())

    def claim(self, key: str, holder: str, dead: str = "") -> str | None:
        values = {"question": key, "by": holder, "dead": dead}
        if self._connection.execute(_CLAIM[self._dialect], values).first() is not None:
            return None
        return self._connection.execute(_HOLDER, {"question": key}).scalar() or ""

    def renew(self, keys: Collection[str], holder: str) -> None:
        mine = sa.update(claims).where(_k.key.in_(keys), _k.holder == holder)
        self._connection.execute(mine.values(renewed_at=database_time()))

    def release(self, key: str, holder: str) -> None:
        self._connection.execute(_RELEASE, {"question": key, "by": holder})

    def close(self) -> None:
        """Does nothing: the transaction belongs to the writer."""


def _stored(rows: Iterable[Sequence[Any]], key: str) -> list[StoredReply]:
    found: list[StoredReply] = []
    for text, *rest, repaired_by in rows:
        words = decompress(text).decode("utf-8", "surrogatepass")
        found.append(StoredReply(Reply(words, *rest, cached=True, key=key), repaired_by))
    return found


def delete_replies(connection: sa.Connection, keys: Collection[str]) -> None:
    """Deletes the replies to these questions, and the unusable ones that they repaired."""
    left = list(keys)
    while left:
        some, left = left[-_DELETED_AT_ONCE:], left[:-_DELETED_AT_ONCE]
        left += connection.execute(sa.select(_r.key).distinct().where(_r.repaired_by.in_(some))).scalars()
        connection.execute(sa.delete(replies).where(_r.key.in_(some)))
        connection.execute(sa.delete(replies).where(_r.repaired_by.in_(some)))


def _row(entry: Entry) -> dict[str, object]:
    question, reply = entry.question, entry.reply
    text = reply.text.encode("utf-8", "surrogatepass")
    return {
        "key": question.key,
        "text_hash": hashlib.sha256(text).hexdigest(),
        "model": question.model,
        "text": compress(text),
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cost_usd": reply.cost_usd,
        "finish_reason": _plain(reply.finish_reason),
        "served_by": _plain(reply.served_by),
        "replied_at": time.time(),
        "repaired_by": entry.repaired_by,
    }


def _plain(text: str) -> str:
    """Text from a server in a form that every database can hold."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
