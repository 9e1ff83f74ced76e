"""The queue of environments' groups, on disk in one SQLite file.

    accept  -> waiting        committed and synced before it returns
    read    -> the oldest     they stay waiting until `trained` says that a step's checkpoint holds them

An accepted group leaves the file only as trained, so a killed process loses none. A body that an environment resends,
because the response was lost, is recognized by its hash and counts once.
"""

import asyncio
import hashlib
import sqlite3
import threading
import time
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from gavel.base.errors import GavelError
from gavel.integrations.atropos.group import MASKS, AtroposGroup
from gavel.trainer.data.training_batch import TokenSpace


class EnvRegistration(BaseModel):
    """The body of `POST /register-env`."""

    max_token_length: int = Field(ge=0)
    desired_name: str | None = None
    weight: float | None = Field(default=1.0, allow_inf_nan=False)
    group_size: int = Field(ge=1)


@dataclass(frozen=True, slots=True)
class Environment:
    """A registered environment."""

    id: int
    name: str
    """The name that it asked for."""
    weight: float
    """Relative weight of its sampling."""
    group_size: int
    connected: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group in the queue."""

    id: int
    env_id: int | None
    size: int
    """Number of sequences."""


def choose_at_least(waiting: Sequence[Waiting], batch_size: int) -> list[Waiting] | None:
    """The oldest groups with at least `batch_size` sequences in total; None if they have fewer."""
    totals = accumulate(group.size for group in waiting)
    last = next((at for at, total in enumerate(totals) if total >= batch_size), None)
    return None if last is None else list(waiting[: last + 1])


_AGAIN_SECONDS = 900.0
"""Seconds after a group during which an equal body counts as a resend."""
_KEPT_SECONDS = 86_400.0
"""Seconds for which the hash of a group is kept once it no longer waits."""
_BUSY_SECONDS = 30.0
_TABLES = """
create table if not exists groups (
  id integer primary key autoincrement, env_id integer, size integer not null, digest blob not null,
  received real not null, at_step integer not null, body blob);
create index if not exists groups_by_digest on groups (digest);
create index if not exists groups_waiting on groups (id) where body is not null;
create table if not exists environments (
  id integer primary key, name text not null, weight real not null, group_size integer not null,
  connected integer not null default 1);
"""


class RefusedRequest(GavelError):
    """A request that is answered with the HTTP status `status`: a group that can never be trained here (422), one
    that this server does not take, or a queue that is full or cannot be read or written (503)."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status


class GroupQueue:
    """A queue for several threads of one process."""

    def __init__(self, path: Path, space: TokenSpace, *, most_groups: int = 4096, step: int = 0) -> None:
        """`space`: of the learner. `most_groups`: max waiting groups. `step`: that the learner has reached. Raises
        `RefusedRequest`."""
        self.path, self.step = path, step
        self.changed = asyncio.Event()
        """Set by the server when a group was accepted."""
        self._space, self._most = space, most_groups
        self._lock = threading.RLock()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = full")
            self._database.execute("pragma locking_mode = exclusive")
            self._database.executescript(_TABLES)
        with self._transaction():
            done = "body is null and received < ?"
            self._database.execute(f"delete from groups where {done}", (time.time() - _KEPT_SECONDS,))

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @property
    def waiting(self) -> list[Waiting]:
        """The waiting groups, oldest first."""
        rows = self._rows("select id, env_id, size from groups where body is not null order by id")
        return [Waiting(*row) for row in rows]

    @property
    def environments(self) -> list[Environment]:
        """All environments that have registered, in the order of their ids, from 0."""
        return [Environment(*row) for row in self._rows("select * from environments order by id")]

    def accept(self, groups: Sequence[AtroposGroup]) -> list[bool]:
        """Stores all groups, or none; returns whether each is new. They are on disk when this returns.

        Raises `RefusedRequest` for one that cannot be trained, and where too many would wait.
        """
        for group in groups:
            self._check(group)
        made = [_encoded(group) for group in groups]
        now, seen = time.time(), set[bytes]()
        is_new: list[bool] = []
        with self._transaction():
            for group, (digest, body) in zip(groups, made, strict=True):
                query = "select 1 from groups where digest = ? and received > ? limit 1"
                is_new.append(digest in seen or not self._rows(query, digest, now - _AGAIN_SECONDS))
                seen.add(digest)  # two equal groups in one request count as two
                if is_new[-1]:
                    row = (group.env_id, len(group), digest, now, self.step, body)
                    columns = "env_id, size, digest, received, at_step, body"
                    self._database.execute(f"insert into groups ({columns}) values (?, ?, ?, ?, ?, ?)", row)
            ((count,),) = self._rows("select count(*) from groups where body is not null")
            if any(is_new) and count > self._most:
                raise RefusedRequest(
                    503,
                    f"{count - sum(is_new):,} groups wait already, and {self._most:,} may",
                    "Send it again when the learner has taken some, or raise --max-waiting.",
                )
        return is_new

    def read(self, ids: Sequence[int]) -> list[tuple[AtroposGroup, int]]:
        """Stored groups, each with the step at which it was accepted."""
        rows = [self._rows("select body, at_step from groups where id = ?", number)[0] for number in ids]
        return [(_decoded(body), step) for body, step in rows]

    def newest(self) -> AtroposGroup | None:
        """The last accepted group, while its body is kept."""
        rows = self._rows("select body from groups where body is not null order by id desc limit 1")
        return _decoded(rows[0][0]) if rows else None

    def trained(self, ids: Sequence[int], step: int) -> None:
        """Marks groups as trained in the checkpoint of `step`. Unknown ids are ignored."""
        with self._transaction():
            self._database.executemany("update groups set body = null where id = ?", [(number,) for number in ids])
        self.step = step

    def register_env(self, asked: EnvRegistration) -> tuple[int, str]:
        """Registers an environment; returns its number and its unique name."""
        with self._transaction():
            name, known = asked.desired_name or "env", self.environments
            weight = asked.max_token_length * max(0.0, 1.0 if asked.weight is None else asked.weight)
            row = (len(known), name, weight, asked.group_size)
            self._database.execute("insert into environments (id, name, weight, group_size) values (?, ?, ?, ?)", row)
        return len(known), f"{name}_{sum(each.name == name for each in known)}"

    def disconnect_env(self, env_id: int) -> bool:
        """Disconnects an environment; returns whether it exists."""
        with self._transaction():
            change = "update environments set connected = 0 where id = ?"
            return bool(self._database.execute(change, (env_id,)).rowcount)

    def _check(self, group: AtroposGroup) -> None:
        """Raises `RefusedRequest` for a group that can never be trained."""
        space, longest, highest = self._space, max(map(len, group.tokens)), max(map(max, group.tokens))
        if longest > space.max_context:
            raise RefusedRequest(
                422,
                f"a member has {longest:,} tokens, and the learner takes {space.max_context:,}",
                "Set the environment's max_token_length, or raise --max-context.",
            )
        if highest >= space.vocabulary:
            raise RefusedRequest(
                422,
                f"a member holds the token {highest}, and the model has {space.vocabulary:,} tokens",
                "Give the environment the tokenizer of the model that is trained (tokenizer_name).",
            )
        if told := group.other_targets():
            raise RefusedRequest(422, told, MASKS)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with self._lock, self._errors():
            self._database.execute("begin immediate")
            try:
                yield
                self._database.execute("commit")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("rollback")
                raise

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RefusedRequest(
                503,
                f"the queue {self.path} cannot be used: {error}",
                "Make room, or end the other process that uses it; no group that was accepted is lost.",
            ) from error


def _encoded(group: AtroposGroup) -> tuple[bytes, bytes]:
    """The hash of a group's content, and its JSON, compressed."""
    text = group.model_dump_json().encode()
    return hashlib.sha256(text).digest(), zlib.compress(text, 1)


def _decoded(body: bytes) -> AtroposGroup:
    return AtroposGroup.model_validate_json(zlib.decompress(body))
