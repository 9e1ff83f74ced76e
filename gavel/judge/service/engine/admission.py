"""Authentication, rate limits and budgets: API keys as one process of the service enforces them.

Keys and their spending are read from the database every two seconds, and updated locally in between. Configured keys
are those of this process's settings. A service without keys requires none.
A key in a URL is sent as the password of HTTP's Basic authentication.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT

from gavel.judge.service.config import KeyConfig
from gavel.judge.service.errors import NotFoundError, Problem, ServiceError, UnauthorizedError
from gavel.judge.service.schemas import KeyScope, Record, key_id_of, new_token, token_hash
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.judgement_store import over_budget
from gavel.judge.service.store.tables import keys

_LOG = logging.getLogger(__name__)
_MINUTE = 60.0
EAGER_SECONDS = 0.5
"""Seconds between lookups of an unknown key."""
_WRONG_KEYS_PER_MINUTE = 10
"""Wrong keys per minute from one address. A valid key is always accepted, so that nobody can lock out a neighbour."""
_OF_SETTINGS = "settings/"
"""Prefix of the ids of configured keys; no token has such an id."""
_k = keys.c


@dataclass(frozen=True, slots=True)
class Key:
    """An API key: a row of the table."""

    id: str
    name: str
    token_hash: str
    scope: KeyScope
    created_at: float
    revoked_at: float | None = None
    spent_usd: float = 0.0
    unpriced_groups: int = 0
    """Judged groups of unknown cost."""


class KeyStore:
    """The keys of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, scope: KeyScope) -> tuple[str, Key]:
        """Creates a key; returns it and its token, which is stored nowhere."""
        token, key_id = new_token()
        key = Key(key_id, name, token_hash(token), scope, time.time())
        self._database.write_now(lambda connection: connection.execute(sa.insert(keys), asdict(key)).close())
        return token, key

    def revoke(self, key_id: str) -> None:
        """Revokes a key for good. Raises `NotFoundError`."""
        update = sa.update(keys).where(_k.id == key_id, _k.revoked_at.is_(None)).values(revoked_at=time.time())
        if not self._database.write_now(lambda connection: connection.execute(update).rowcount):
            raise NotFoundError(f"there is no key {key_id!r} that could be revoked.", "gavel keys list shows them.")

    def all_now(self) -> list[Key]:
        """All keys, the oldest first, including revoked ones."""
        return self._database.read_now(_all)


def _all(connection: sa.Connection) -> list[Key]:
    return [Key(*row) for row in connection.execute(sa.select(keys).order_by(_k.created_at, _k.id))]


def _file(connection: sa.Connection, scopes: Mapping[str, KeyScope]) -> None:
    """Creates rows for the configured keys, by id; existing rows keep their spending."""
    for key_id, scope in scopes.items():
        row = asdict(Key(key_id, key_id.removeprefix(_OF_SETTINGS), "", scope, time.time()))
        statement = insert(keys).values(row).on_conflict_do_update(index_elements=["id"], set_={"scope": scope})
        connection.execute(statement)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    key_id: str = ""
    """Id of the API key; empty without keys."""
    key_name: str = ""
    scope: KeyScope | None = None
    """What the key may do; None without keys."""
    traceparent: str | None = None
    """W3C trace context of the request; None if it has none, or tracing is off."""

    @property
    def projects(self) -> tuple[str, ...] | None:
        """Projects that it may use; None = all."""
        return (tuple(self.scope.projects) or None) if self.scope else None

    def may_use(self, project: str) -> bool:
        return self.projects is None or project in self.projects

    def check(self, project: str, judges: Sequence[str]) -> None:
        """Raises `Problem` for a project or judge that the caller may not use."""
        self.visible(project)
        allowed = set(self.scope.judges) if self.scope else set[str]()
        if allowed and (others := set(judges) - allowed):
            why = f"this key is not for the judge {', '.join(sorted(others))}."
            raise Problem(
                403, "forbidden", why, f"Its judges: {', '.join(sorted(allowed))}; name one of them as judge."
            )

    def visible(self, project: str | None) -> Collection[str] | None:
        """The projects of a list, None = all: the named one, or the caller's. Raises `Problem`."""
        if project is None:
            return self.projects
        if not self.may_use(project):
            own = ", ".join(self.projects or ())
            raise Problem(403, "forbidden", f"this key is not for the project {project!r}.", f"Its projects: {own}.")
        return (project,)

    def project_of(self, named: str) -> str:
        """The project of a request: the named one, else the caller's first."""
        return named or (self.projects[0] if self.projects else "")


ANYONE = Caller()
"""The caller at a service without keys."""


class Admission:
    """The API keys of a service, and what is spent on them."""

    def __init__(self, database: Database, of_settings: Mapping[str, KeyConfig] | None = None) -> None:
        """Raises `ServiceError` for a configured key that is missing in the environment, or duplicated."""
        self._database = database
        self._of_settings = {_OF_SETTINGS + name: key for name, key in (of_settings or {}).items()}
        self._hashes = {_OF_SETTINGS + name: key.token_hash(name) for name, key in (of_settings or {}).items()}
        self._ids_by_hash = {hashed: key_id for key_id, hashed in self._hashes.items()}
        if len(self._ids_by_hash) < len(self._hashes):
            raise ServiceError("two keys of the settings are the same key.", "Give each name a key of its own.")
        self._is_filed = False
        self._keys: dict[str, Key] = {}
        self._spent: defaultdict[str, float] = defaultdict(float)
        """US dollars spent since the last refresh, by key."""
        self._sent: defaultdict[str, deque[float]] = defaultdict(deque)
        """Times of the last minute's requests, by key or address, on a monotonic clock."""
        self._read_at = -math.inf
        self._running: Counter[str] = Counter()
        """Groups that are being judged here, by key with a budget."""
        self._dearest: dict[str, float] = {}
        """Max US dollars of a group that was judged here, by key."""
        self._changed = asyncio.Condition()

    @property
    def is_required(self) -> bool:
        """Whether requests need a key: True once a key has existed, even if all are revoked."""
        return bool(self._keys)

    async def refresh(self) -> None:
        """Reads the keys and their groups. Raises `DatabaseUnavailableError`."""
        self._read_at = now = time.monotonic()
        for who in [who for who, sent in self._sent.items() if not sent or sent[-1] <= now - _MINUTE]:
            del self._sent[who]
        if self._of_settings and not self._is_filed:
            await self._database.write(partial(_file, scopes=self._of_settings))
            self._is_filed = True
        found = {key.id: key for key in await self._database.read(_all)}
        for key_id, scope in self._of_settings.items():
            found[key_id] = replace(found[key_id], token_hash=self._hashes[key_id], scope=scope)
        self._keys, self._spent = found, defaultdict(float)

    async def authenticate(self, authorization: str | None, address: str = "") -> Caller:
        """The caller with this Authorization header, from this address. Raises `UnauthorizedError`, and
        `Problem` for too many requests or wrong keys."""
        if not authorization and not self._keys:
            return ANYONE
        token = _token(authorization or "")
        hashed = token_hash(token)
        key_id = self._ids_by_hash.get(hashed) or key_id_of(token)
        if key_id and key_id not in self._keys and time.monotonic() - self._read_at > EAGER_SECONDS:
            await self.refresh()  # it may have just been created
        if not self.is_required:
            return ANYONE
        if not authorization:
            raise UnauthorizedError(
                "the service needs an API key.", "Send it as Authorization: Bearer KEY; gavel keys create makes one."
            )
        key = self._keys.get(key_id)
        is_right = hmac.compare_digest(token_hash("") if key is None else key.token_hash, hashed)  # always compared
        if key is None or not is_right or key.revoked_at is not None:
            if self._seconds_to_wait(f"wrong keys of {address}", _WRONG_KEYS_PER_MINUTE):
                why = "too many requests with a wrong API key came from this address."
                raise Problem(429, "wrong-keys", why, "Correct the key, and wait a minute.", {"Retry-After": "60"})
            raise UnauthorizedError(
                "the API key is not known here, or it was revoked.", "Use another one; gavel keys create makes one."
            )
        most = key.scope.requests_per_minute
        if most is not None and (seconds := self._seconds_to_wait(key.id, most)):
            why = f"the key may make {most} requests a minute."
            raise Problem(429, "rate", why, f"Wait {seconds} s.", {"Retry-After": str(seconds)})
        return Caller(key.id, key.name, key.scope)

    def finished(self, record: Record) -> None:
        """Records the cost of a group that was judged here."""
        cost = record.cost_usd or 0.0
        self._spent[record.key_id] += cost
        if cost or record.status not in ("failed", "unscored"):
            self._dearest[record.key_id] = max(self._dearest.get(record.key_id, 0.0), cost)

    @asynccontextmanager
    async def room(self, key_id: str) -> AsyncGenerator[None]:
        """Waits until the key's budget has room for one more group beside those that are judged here, which the block
        occupies. Raises `OverBudgetError` if the budget is spent."""
        if (key := self._keys.get(key_id)) is None or key.scope.max_cost_usd is None:
            yield
            return
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(key_id))
            self._running[key_id] += 1
        try:
            yield
        finally:
            self._running[key_id] -= 1
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self, key_id: str) -> bool:
        """Raises `OverBudgetError` if the key's budget is spent."""
        if (key := self._keys.get(key_id)) is None or key.scope.max_cost_usd is None:
            return True
        spent, running = key.spent_usd + self._spent[key_id], self._running[key_id]
        if (refused := over_budget(spent, key.unpriced_groups, key.scope)) is not None:
            raise refused
        return not running or self._dearest.get(key_id, math.inf) * (running + 1) <= key.scope.max_cost_usd - spent

    def _seconds_to_wait(self, who: str, per_minute: int) -> int:
        """Counts one request; returns the seconds to wait, 0 if it is allowed."""
        now, sent = time.monotonic(), self._sent[who]
        while sent and sent[0] <= now - _MINUTE:
            sent.popleft()
        if len(sent) >= per_minute:
            return math.ceil(sent[0] + _MINUTE - now)
        sent.append(now)
        return 0


def _token(authorization: str) -> str:
    """The key in an Authorization header: a Bearer token, or the password of Basic, which clients derive from a URL."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return value.strip() if scheme.lower() == "bearer" else ""
