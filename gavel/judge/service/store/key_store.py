"""API keys in the database: made, listed, revoked, and never stored themselves.

    token, key = KeyStore(database).create("trainer", KeyScope(projects=["desk"]))
    token                                  "gavel_4f1c…_…": shown once; the database has its SHA-256

A key of the settings has a row too, for what it has spent; its hash is in the settings alone.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gavel.judge.service.errors import NotFoundError
from gavel.judge.service.schemas.key_scope import KeyScope
from gavel.judge.service.schemas.key_token import new_token, token_hash
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.tables import keys

_OF_SETTINGS = "settings/"
"""Begins the ids of keys that the settings name; no token has such an id."""
_NO_HASH = ""
_k = keys.c


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as the database has it."""

    id: str
    name: str
    token_hash: str
    scope: KeyScope
    created_at: float
    revoked_at: float | None
    spent_usd: float
    unpriced_groups: int
    """Judged groups whose cost is not known."""


class KeyStore:
    """The keys of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, scope: KeyScope) -> tuple[str, Key]:
        """A new key, and its token, which is nowhere else."""
        token, key_id = new_token()
        key = Key(key_id, name, token_hash(token), scope, time.time(), None, 0.0, 0)
        values = _columns(key)
        self._database.submit(lambda connection: connection.execute(sa.insert(keys).values(values))).result()
        return token, key

    async def file(self, scopes: Mapping[str, KeyScope]) -> None:
        """Makes rows for the keys of the settings, by id, which keep what they have spent."""
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
        """Ends a key for ever. Raises `NotFoundError`."""
        update = sa.update(keys).where(_k.id == key_id, _k.revoked_at.is_(None)).values(revoked_at=time.time())
        if not self._database.submit(lambda connection: connection.execute(update).rowcount).result():
            raise NotFoundError(f"there is no key {key_id!r} that could be revoked.", "gavel keys list shows them.")

    def all_now(self) -> list[Key]:
        """All keys, the oldest first, revoked ones too."""
        return self._database.read_now(_all)

    async def all(self) -> list[Key]:
        """The same without holding the event loop."""
        return await self._database.read(_all)


def settings_key_id(name: str) -> str:
    """The id of a key of the settings."""
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
    return [
        Key(
            id=row.id,
            name=row.name,
            token_hash=row.token_hash,
            scope=KeyScope.model_validate_json(row.scope),
            created_at=row.created_at,
            revoked_at=row.revoked_at,
            spent_usd=row.spent_usd,
            unpriced_groups=row.unpriced_groups,
        )
        for row in connection.execute(sa.select(keys).order_by(_k.created_at, _k.id))
    ]
