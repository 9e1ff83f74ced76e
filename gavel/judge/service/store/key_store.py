"""API keys in the database: created, listed and revoked; only their hashes are stored.

    token, key = KeyStore(database).create("trainer", KeyScope(projects=["desk"]))
    token                                  "gavel_4f1c…_…": shown once; the database has its SHA-256

A configured key has a row too, for its spending; its hash is only in the settings.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gavel.judge.service.errors import NotFoundError, OverBudgetError, Problem, ServiceError
from gavel.judge.service.schemas.records import KeyScope, new_token, token_hash
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.tables import groups, judgements, keys

_OF_SETTINGS = "settings/"
"""Prefix of the ids of configured keys; no token has such an id."""
_NO_HASH = ""
_k = keys.c
_OF_KEY = sa.select(_k.spent_usd, _k.unpriced_groups).where(_k.id == sa.bindparam("of_key"))
_GROUPS = ((judgements, judgements.c.finished_at), (groups, groups.c.closed_at))
_UNFINISHED = [
    sa.select(sa.func.count()).select_from(table).where(table.c.key_id == sa.bindparam("of_key"), ended.is_(None))
    for table, ended in _GROUPS
]


@dataclass(frozen=True, slots=True)
class Key:
    """An API key's row."""

    id: str
    name: str
    token_hash: str
    scope: KeyScope
    created_at: float
    revoked_at: float | None
    spent_usd: float
    unpriced_groups: int
    """Judged groups of unknown cost."""


class KeyStore:
    """The keys of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, scope: KeyScope) -> tuple[str, Key]:
        """Creates a key; returns it and its token, which is stored nowhere."""
        token, key_id = new_token()
        key = Key(key_id, name, token_hash(token), scope, time.time(), None, 0.0, 0)
        values = _columns(key)
        self._database.write_now(lambda connection: connection.execute(sa.insert(keys).values(values)).close())
        return token, key

    async def file(self, scopes: Mapping[str, KeyScope]) -> None:
        """Creates rows for the configured keys, by id; existing rows keep their spending."""
        now = time.time()
        rows = [
            _columns(Key(key_id, key_id.removeprefix(_OF_SETTINGS), _NO_HASH, scope, now, None, 0.0, 0))
            for key_id, scope in scopes.items()
        ]

        def work(connection: sa.Connection) -> None:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            for row in rows:
                changed = {"scope": row["scope"]}
                connection.execute(insert(keys).values(row).on_conflict_do_update(index_elements=["id"], set_=changed))

        await self._database.write(work)

    def revoke(self, key_id: str) -> None:
        """Revokes a key for good. Raises `NotFoundError`."""
        update = sa.update(keys).where(_k.id == key_id, _k.revoked_at.is_(None)).values(revoked_at=time.time())
        if not self._database.write_now(lambda connection: connection.execute(update).rowcount):
            raise NotFoundError(f"there is no key {key_id!r} that could be revoked.", "gavel keys list shows them.")

    def all_now(self) -> list[Key]:
        """All keys, the oldest first, including revoked ones."""
        return self._database.read_now(_all)

    async def all(self) -> list[Key]:
        """The same without blocking the event loop."""
        return await self._database.read(_all)

    async def unfinished_groups(self) -> Counter[str]:
        """Number of groups that are open or not judged yet, by key."""
        return await self._database.read(_unfinished)


def _unfinished(connection: sa.Connection) -> Counter[str]:
    counted: Counter[str] = Counter()
    for table, ended in _GROUPS:
        query = sa.select(table.c.key_id, sa.func.count()).where(ended.is_(None)).group_by(table.c.key_id)
        for key_id, number in connection.execute(query):
            counted[key_id] += number
    return counted


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
    return too_busy(sum(connection.execute(query, of_key).scalar_one() for query in _UNFINISHED), scope)


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


def too_busy(unfinished: int, scope: KeyScope) -> Problem | None:
    """Error for a key with too many unfinished groups."""
    if (most := scope.concurrent_groups) is None or unfinished < most:
        return None
    why = f"the key has {most} unfinished groups, as many as it may have."
    return Problem(429, "too-many-groups", why, "Send fewer at once.", {"Retry-After": "1"})


def settings_key_id(name: str) -> str:
    """The id of a configured key."""
    return f"{_OF_SETTINGS}{name}"


def _columns(key: Key) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "token_hash": key.token_hash,
        "scope": key.scope.model_dump_json(exclude_defaults=True, include=set(KeyScope.model_fields)),
        "created_at": key.created_at,
        "spent_usd": 0.0,
        "unpriced_groups": 0,
    }


def _all(connection: sa.Connection) -> list[Key]:
    names = [field.name for field in fields(Key)]
    rows = connection.execute(sa.select(*(_k[name] for name in names)).order_by(_k.created_at, _k.id)).mappings()
    found: list[dict[str, Any]] = [{**row, "scope": KeyScope.model_validate_json(row["scope"])} for row in rows]
    return [Key(**each) for each in found]
