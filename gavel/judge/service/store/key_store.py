"""API keys in the database: made, listed, revoked, and never stored themselves.

    token, key = KeyStore(database).create("trainer", KeyScope(projects=["desk"]))
    token                                  "gavel_4f1c…_…": shown once; the database has its SHA-256

A token's secret has 256 random bits, so that a plain hash of it tells nothing.
"""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass

import sqlalchemy as sa

from gavel.judge.service.errors import NotFoundError
from gavel.judge.service.schemas.key_scope import KeyScope
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.tables import keys

_PREFIX = "gavel_"
_ID_BYTES = 6
_SECRET_BYTES = 32
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

    def opens(self, token: str) -> bool:
        """Whether the token is this key's, in a time that tells nothing of it."""
        return hmac.compare_digest(self.token_hash, token_hash(token)) and self.revoked_at is None


class KeyStore:
    """The keys of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, scope: KeyScope) -> tuple[str, Key]:
        """A new key, and its token, which is nowhere else."""
        key_id = secrets.token_hex(_ID_BYTES)
        token = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        key = Key(key_id, name, token_hash(token), scope, time.time(), None, 0.0, 0)
        values = {
            "id": key.id,
            "name": key.name,
            "token_hash": key.token_hash,
            "scope": scope.model_dump_json(exclude_defaults=True),
            "created_at": key.created_at,
            "spent_usd": 0.0,
            "unpriced_groups": 0,
        }
        self._database.submit(lambda connection: connection.execute(sa.insert(keys).values(values))).result()
        return token, key

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


def key_id_of(token: str) -> str:
    """The id in a token; empty where it is none."""
    return token.removeprefix(_PREFIX).partition("_")[0] if token.startswith(_PREFIX) else ""


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


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
