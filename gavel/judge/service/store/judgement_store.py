"""Judgements in the database: accepted, finished, read, listed and deleted.

Every method returns once its transaction is committed. The first stored outcome of a judgement is final: a process
whose lease has expired may still finish, and then the other one's outcome is dropped.
"""

import dataclasses
import hashlib
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT

from gavel.judge.service.errors import OverBudgetError, Problem, ServiceError
from gavel.judge.service.schemas import STATUSES, KeyScope, PageQuery, Record, Verdict
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.reply_store import delete_replies
from gavel.judge.service.store.tables import groups, judgements, keys, members, replies
from gavel.llm.budget import Ledger
from gavel.scenarios.judgement import GroupJudgement

_c = judgements.c
_FIELDS = tuple(field.name for field in dataclasses.fields(Record))
SUMMARY = tuple(_c[name] for name in _FIELDS[:-1])
"""The columns of a record without its verdict, in order."""
_WITH_RESULT = sa.select(*SUMMARY, _c.result)
# Statements for groups are built once: building one takes longer than running it.
_INSERT = insert(judgements).on_conflict_do_nothing().returning(_c.id)
"""Stores a request, unless its idempotency key is known."""
_FINISH = sa.update(judgements).where(_c.id == sa.bindparam("judgement"), _c.finished_at.is_(None)).returning(_c.id)
"""Stores an outcome, unless there is one."""
_OF_KEY = sa.select(keys.c.spent_usd, keys.c.unpriced_groups).where(keys.c.id == sa.bindparam("of_key"))
_UNFINISHED = [
    sa.select(sa.func.count()).select_from(table).where(table.c.key_id == sa.bindparam("of_key"), ended.is_(None))
    for table, ended in ((judgements, judgements.c.finished_at), (groups, groups.c.closed_at))
]
_EXPIRED_AT_ONCE = 200
"""Max judgements that one transaction deletes."""


_lock = threading.Lock()
_last = 0
"""Milliseconds and their fraction in the newest id: a clock that is set back does not misorder them."""


def new_id() -> str:
    """A UUID of version 7: Unix milliseconds, their fraction in 12 bits, and random bits (RFC 9562, 6.2, method 3)."""
    global _last
    with _lock:
        _last = max(_last + 1, (time.time_ns() << 12) // 1_000_000)
        milliseconds, fraction = divmod(_last, 1 << 12)
    return str(UUID(int=milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | secrets.randbits(62)))


def first_id_at(seconds: float) -> str:
    """The lowest id of this time: earlier ids sort before it."""
    milliseconds = int(min(max(seconds * 1000, 0), 2**48 - 1))
    return str(UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62))


class Store:
    """The judgements of a database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.erasures = 1
        """Number of deletions since the log was emptied; starts at 1 for those of an earlier process."""

    async def accept(
        self,
        record: Record,
        payload: bytes,
        owner: str | None = None,
        *,
        idempotency_key: str | None = None,
        scope: KeyScope | None = None,
    ) -> tuple[Record, bool]:
        """Stores a request (`payload`, as JSON) as a queued judgement; with an `owner` it is leased to that process.

        Returns its record, and whether it is new: for a known idempotency key it is that of the earlier request, which
        is queued again if it failed. Raises `Problem` if that request differs, and the error of `refusal_of_group` for
        the `scope` of its key.
        """
        lease = {} if owner is None else {"status": "running", "lease_owner": owner, "leases": 1}
        request_hash = hashlib.sha256(payload).hexdigest() if idempotency_key else ""

        def work(connection: sa.Connection) -> tuple[Record, bool]:
            values = columns_of(record, payload) | lease
            values |= {"idempotency_key": idempotency_key, "request_hash": request_hash}
            accepted = dataclasses.replace(record, status=values["status"])
            refusal = refusal_of_group(connection, record.key_id, scope)
            if refusal is not None and idempotency_key is None:
                raise refusal
            if refusal is None and connection.execute(_INSERT, values).first() is not None:
                return accepted, True
            same = sa.select(*SUMMARY, _c.result, _c.request_hash).where(_c.idempotency_key == idempotency_key)
            same = same.where(_c.key_id == record.key_id, _c.project == record.project)
            if (row := connection.execute(same).one_or_none()) is None:
                assert refusal is not None
                raise refusal
            if row.request_hash != request_hash:
                why = "this Idempotency-Key was used before with another request."
                remedy = "Use a new key for each group; send the same body when you try again."
                raise Problem(422, "idempotency-key-reused", why, remedy)
            if row.status != "failed":
                return record_of(row), False
            if refusal is not None:
                raise refusal
            renewed = ("status", "finished_at", "result", "payload", "lease_owner", "leases")
            again = {name: values[name] for name in renewed}
            connection.execute(sa.update(judgements).where(_c.id == row.id).values(again))
            return dataclasses.replace(accepted, id=row.id, created_at=row.created_at), True

        return await self.database.write(work, _order_of_charges(record))

    async def finish(
        self, record: Record, verdict: Verdict, ledger: Ledger | None = None, at: float | None = None
    ) -> Record | None:
        """Stores the outcome, and charges its key in the same transaction. Returns the resulting record, which another
        process may have finished first; None if it was deleted meanwhile.

        `ledger`: the requests, if the judge was called. `at`: Unix seconds, None = now; an outcome that is stored again
        with the same time, as after a lost response of the database, is charged once.
        """
        ledger, at = ledger or Ledger(), time.time() if at is None else at
        verdict = verdict.with_questions(ledger.questions)

        def work(connection: sa.Connection) -> Record | None:
            columns = outcome_columns(verdict, at)
            if connection.execute(_FINISH, {"judgement": record.id, **columns}).first() is not None:
                _charge(connection, record.key_id, ledger)
                kept = {column.name: columns[column.name] for column in SUMMARY if column.name in columns}
                return dataclasses.replace(record, **kept, verdict=verdict)
            row = connection.execute(_WITH_RESULT.where(_c.id == record.id)).one_or_none()
            if row is None:
                delete_replies(connection, verdict.reply_keys)
            if row is None or row.finished_at != at:  # else this write is repeated
                _charge(connection, record.key_id, ledger)
            return None if row is None else record_of(row)

        return await self.database.write(work, _order_of_charges(record))

    async def give_up(self, record: Record, ledger: Ledger) -> None:
        """Charges the key for a judgement without an outcome here; erases the replies if it was deleted."""

        def work(connection: sa.Connection) -> None:
            _charge(connection, record.key_id, ledger)
            if connection.execute(sa.select(_c.id).where(_c.id == record.id)).first() is None:
                delete_replies(connection, ledger.questions)

        self.erasures += 1
        await self.database.write(work, _order_of_charges(record))

    async def get(self, judgement: str) -> Record | None:
        """The record with its verdict."""
        found = {} if "\0" in judgement else await self.get_all([judgement])  # PostgreSQL rejects a lookup of it
        return found.get(judgement)

    async def get_all(self, ids: Collection[str]) -> dict[str, Record]:
        """The records with these ids, by id."""
        query = _WITH_RESULT.where(_c.id.in_(list(ids)))
        return {row.id: record_of(row) for row in await self.database.rows(query)} if ids else {}

    async def page(self, query: PageQuery, projects: Collection[str] | None) -> tuple[list[Record], bool]:
        """The judgements of a query in these projects (None = all), newest first, without their verdicts; and whether
        there are more."""
        wanted = [
            None if projects is None else _c.project.in_(sorted(projects)),
            _c.status.in_([one for name in query.status for one in STATUSES[name]]) if query.status else None,
            None if query.judge is None else _c.judge == query.judge,
            None if query.since is None else _c.id >= first_id_at(query.since),
            None if query.until is None else _c.id < first_id_at(query.until),
            None if query.before is None else _c.id < query.before,
        ]
        statement = sa.select(*SUMMARY).where(*(one for one in wanted if one is not None))
        statement = statement.order_by(_c.id.desc()).limit(query.limit + 1)
        found = await self.database.rows(statement)
        return [record_of(row) for row in found[: query.limit]], len(found) > query.limit

    async def delete(self, judgement: str) -> bool:
        """Deletes a judgement with its transcripts and replies; returns whether it existed. A running one will not be
        finished."""
        self.erasures += 1
        return await self.database.write(lambda connection: _delete(connection, [judgement]), "group") > 0

    async def delete_before(self, seconds: float) -> int:
        """Deletes finished judgements and replies older than this Unix time; returns the number of judgements."""
        old = sa.select(_c.id).where(_c.id < first_id_at(seconds), _c.finished_at.is_not(None)).limit(_EXPIRED_AT_ONCE)
        old_replies = sa.delete(replies).where(replies.c.replied_at < seconds)
        deleted = 0
        self.erasures += 1
        while count := await self.database.write(lambda c: _delete(c, c.execute(old).scalars().all())):
            deleted += count
        await self.database.write(lambda connection: connection.execute(old_replies).close())
        return deleted

    async def overwrite_erased(self) -> None:
        """Removes erased data from the database's files."""
        if (erasures := self.erasures) and await self.database.truncate_log():
            self.erasures -= erasures

    async def counts(self) -> dict[str, int]:
        """Number of unfinished judgements by status: "queued", "running"."""
        query = sa.select(_c.status, sa.func.count()).where(_c.finished_at.is_(None)).group_by(_c.status)
        return {"queued": 0, "running": 0} | {row.status: row[1] for row in await self.database.rows(query)}


def refusal_of_group(connection: sa.Connection, key_id: str, scope: KeyScope | None) -> ServiceError | None:
    """Reason why a key may not start a group in this transaction, which locks the key's row from here on: so its limits
    hold for concurrent requests, and across processes."""
    if scope is None or scope.max_cost_usd is scope.concurrent_groups is None:
        return None
    of_key = {"of_key": key_id}
    row = connection.execute(_OF_KEY.with_for_update() if scope.concurrent_groups else _OF_KEY, of_key).one()
    error = over_budget(row.spent_usd, row.unpriced_groups, scope)
    if error is not None or scope.concurrent_groups is None:
        return error
    if sum(connection.execute(query, of_key).scalar_one() for query in _UNFINISHED) < scope.concurrent_groups:
        return None
    why = f"the key has {scope.concurrent_groups} unfinished groups, as many as it may have."
    return Problem(429, "too-many-groups", why, "Send fewer at once.", {"Retry-After": "1"})


def over_budget(spent_usd: float, unpriced_groups: int, scope: KeyScope) -> OverBudgetError | None:
    """Error for a key that has spent its limit."""
    if (most := scope.max_cost_usd) is None:
        return None
    if spent_usd >= most:
        return OverBudgetError(f"the key's budget of {most:g} USD is spent.", "Use another key.")
    if not unpriced_groups:
        return None
    return OverBudgetError(
        f"the key's budget of {most:g} USD cannot be kept: the cost of {unpriced_groups} of its judgements "
        "is not known, because the judge has no price, or a call to it failed and may have been paid.",
        "Give the service the judge's prices (GAVEL_PRICES) if it has none, and make a new key.",
    )


def _order_of_charges(record: Record) -> str:
    return f"charge {record.key_id}" if record.key_id else ""


def _charge(connection: sa.Connection, key_id: str, ledger: Ledger) -> None:
    if not key_id:
        return
    spent: dict[str, Any] = {"spent_usd": keys.c.spent_usd + ledger.usd} if ledger.usd else {}
    if ledger.unpriced:
        spent["unpriced_groups"] = keys.c.unpriced_groups + 1
    if spent:
        connection.execute(sa.update(keys).where(keys.c.id == key_id).values(spent))


def _delete(connection: sa.Connection, ids: Iterable[str]) -> int:
    ids = list(ids)
    if not ids:
        return 0
    verdicts = connection.execute(sa.select(_c.result).where(_c.id.in_(ids))).scalars()
    delete_replies(connection, {key for verdict in verdicts if verdict for key in verdict.reply_keys})
    connection.execute(sa.delete(members).where(members.c.group_id.in_(ids)))
    connection.execute(sa.delete(groups).where(groups.c.id.in_(ids)))
    return connection.execute(sa.delete(judgements).where(_c.id.in_(ids))).rowcount


def record_of(row: Sequence[Any]) -> Record:
    """The record of a row that begins with the columns of `SUMMARY`, and maybe `result`."""
    return Record(*row[: len(_FIELDS)])


def columns_of(record: Record, payload: bytes) -> dict[str, Any]:
    """The values of a new row."""
    fixed: dict[str, Any] = {"result": None, "lease_owner": None, "leases": 0, "request_hash": ""}
    return {name: getattr(record, name) for name in _FIELDS[:-1]} | fixed | {"payload": payload}


def outcome_columns(verdict: Verdict, finished_at: float) -> dict[str, Any]:
    """The columns that finishing a judgement sets, except for its payload."""
    whole = verdict.group or GroupJudgement(status="unscored")
    spent = {name: getattr(whole, name) for name in ("calls", "prompt_tokens", "completion_tokens", "cost_usd")}
    outcome = {"status": verdict.status, "finished_at": finished_at, "result": verdict, "lease_owner": None}
    return {**spent, **outcome}
