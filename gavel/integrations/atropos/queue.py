"""The queue of environments' groups, on disk in one SQLite file.

    accept  -> waiting        committed and synced before it returns
    take    -> the oldest     they stay waiting until `trained` says that a step's checkpoint holds them
    lend    -> lent           to a trainer over HTTP; `delivered` when the answer is on its way, else lent again

An accepted group leaves the file only as trained, delivered or reset, so a killed process loses none. A body that an
environment resends, because the response was lost, is recognized by its hash and counts once.
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

from pydantic import BaseModel, ConfigDict, Field

from gavel.base.errors import GavelError
from gavel.integrations.atropos.group import MASKS, AtroposGroup
from gavel.trainer.data.training_batch import TokenSpace

LEAST_WEIGHT = 0.01
"""Min share of the sampling, so that no environment is starved."""


class TrainerRegistration(BaseModel):
    """The body of `POST /register`."""

    model_config = ConfigDict(extra="allow")

    wandb_group: str
    wandb_project: str
    batch_size: int = Field(ge=1)
    """Sequences per batch."""
    max_token_len: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    starting_step: int = Field(ge=0)
    num_steps: int


class EnvRegistration(BaseModel):
    """The body of `POST /register-env`."""

    max_token_length: int = Field(ge=0)
    desired_name: str | None = None
    weight: float | None = Field(default=1.0, allow_inf_nan=False)
    group_size: int = Field(ge=1)


class RegisteredEnv(BaseModel):
    env_id: int
    real_name: str
    registration: EnvRegistration
    connected: bool = True

    @property
    def weight(self) -> float:
        """Relative weight of its sampling."""
        weight = self.registration.weight
        return self.registration.max_token_length * max(0.0, 1.0 if weight is None else weight)


class Peers(BaseModel):
    """The trainer and the environments at the other end."""

    trainer: TrainerRegistration | None = None
    started: bool = False
    """Whether the trainer has requested a batch: environments register only then."""
    step: int = 0
    """Steps that the trainer has taken, or batches that it received."""
    batch: int = 0
    """Number of the last batch."""
    envs: list[RegisteredEnv] = []

    def share(self, env: RegisteredEnv) -> float:
        """The environment's share among the connected ones, at least `LEAST_WEIGHT`."""
        total = sum(each.weight for each in self.envs if each.connected)
        return max(LEAST_WEIGHT, env.weight / total) if total > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group in the queue."""

    id: int
    env_id: int | None
    size: int
    """Number of sequences."""


def choose_exactly(waiting: Sequence[Waiting], batch_size: int) -> list[Waiting] | None:
    """The oldest groups with exactly `batch_size` sequences in total, in order; None if there are none.

    Of two such choices, returns the one whose first differing group is older.
    """
    fitting = [group for group in waiting if group.size <= batch_size]
    # reach[at]: the sums (as bits) that groups from `at` on can reach
    reach = [1] * (len(fitting) + 1)
    for at in reversed(range(len(fitting))):
        reach[at] = (reach[at + 1] | reach[at + 1] << fitting[at].size) & ((1 << batch_size + 1) - 1)
    if not reach[0] >> batch_size & 1:
        return None
    taken: list[Waiting] = []
    room = batch_size
    for at, group in enumerate(fitting):
        left = room - group.size
        if left >= 0 and reach[at + 1] >> left & 1:
            taken.append(group)
            room = left
    return taken


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
  received real not null, at_step integer not null, state text not null, batch integer, body blob);
create index if not exists groups_by_state on groups (state, id);
create index if not exists groups_by_digest on groups (digest);
create table if not exists peers (id integer primary key, body text not null);
"""


class RefusedRequest(GavelError):
    """A request that is answered with the HTTP status `status`: a group that can never be trained here (422), one
    that this server does not take, or a queue that is full or cannot be read or written (503)."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status


class GroupQueue:
    """A queue for several threads of one process."""

    def __init__(self, path: Path, *, most_groups: int = 4096, space: TokenSpace | None = None) -> None:
        """`most_groups`: max waiting groups. `space`: of the server's own learner; None: another trainer takes the
        batches. Raises `RefusedRequest`."""
        self.path, self.space = path, space
        self.changed = asyncio.Event()
        """Set by the server when a group was accepted."""
        self._most = most_groups
        self._lock = threading.RLock()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = full")
            self._database.execute("pragma locking_mode = exclusive")
            self._database.executescript(_TABLES)
        rows = self._rows("select body from peers")
        self.peers = Peers.model_validate_json(rows[0][0]) if rows else Peers()
        """Changed in transactions alone."""
        with self._transaction():
            done = "body is null and received < ?"
            self._database.execute(f"delete from groups where {done}", (time.time() - _KEPT_SECONDS,))

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @property
    def step(self) -> int:
        return self.peers.step

    @property
    def waiting(self) -> list[Waiting]:
        """The waiting groups that are in no batch, oldest first."""
        rows = self._rows("select id, env_id, size from groups where state = 'waiting' order by id")
        return [Waiting(*row) for row in rows]

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
                    row = (group.env_id, len(group), digest, now, self.step, "waiting", body)
                    columns = "env_id, size, digest, received, at_step, state, body"
                    self._database.execute(f"insert into groups ({columns}) values (?, ?, ?, ?, ?, ?, ?)", row)
            ((count,),) = self._rows("select count(*) from groups where state = 'waiting'")
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
        """Marks groups as trained in the checkpoint of `step`. Ids that are not waiting are ignored."""
        with self._transaction() as peers:
            change = "update groups set state = 'trained', batch = ?, body = null where id = ? and state = 'waiting'"
            self._database.executemany(change, [(step, number) for number in ids])
            peers.step = step

    def lend(self) -> tuple[int, list[AtroposGroup]] | None:
        """The number and the groups of the trainer's batch: the oldest undelivered one, else a new one, of the oldest
        groups that make up a batch exactly. None while too few wait."""
        query = "select batch, body from groups where state = 'lent' order by batch, id"
        with self._transaction() as peers:
            peers.started = True
            lent = self._rows(query)
            if not lent and peers.trainer and (chosen := choose_exactly(self.waiting, peers.trainer.batch_size)):
                peers.batch += 1
                peers.step += 1
                change = "update groups set state = 'lent', batch = ? where id = ?"
                self._database.executemany(change, [(peers.batch, group.id) for group in chosen])
                lent = self._rows(query)
        return (lent[0][0], [_decoded(body) for batch, body in lent if batch == lent[0][0]]) if lent else None

    def delivered(self, batch: int) -> None:
        """Marks a batch as delivered to the trainer."""
        with self._transaction():
            self._database.execute("update groups set state = 'delivered', body = null where batch = ?", (batch,))

    def reset(self) -> None:
        """Deletes waiting and lent groups, environments and the trainer."""
        with self._transaction() as peers:
            self._database.execute("update groups set state = 'reset', body = null where state in ('waiting', 'lent')")
            peers.trainer, peers.started, peers.step, peers.envs = None, False, 0, []

    def register(self, registration: TrainerRegistration, *, started: bool = False) -> None:
        """Stores the trainer's registration; the step is then its starting step."""
        with self._transaction() as peers:
            peers.trainer, peers.step = registration, registration.starting_step
            peers.started |= started

    def register_env(self, registration: EnvRegistration) -> RegisteredEnv:
        """Registers an environment under a unique number and name."""
        with self._transaction() as peers:
            name = registration.desired_name or "env"
            same = [env.real_name.rpartition("_")[0] for env in peers.envs].count(name)
            env = RegisteredEnv(env_id=len(peers.envs), real_name=f"{name}_{same}", registration=registration)
            peers.envs.append(env)
        return env

    def disconnect_env(self, env_id: int) -> bool:
        """Disconnects an environment; returns whether it exists."""
        with self._transaction() as peers:
            found = [env for env in peers.envs if env.env_id == env_id]
            for env in found:
                env.connected = False
        return bool(found)

    def _check(self, group: AtroposGroup) -> None:
        """Raises `RefusedRequest` for a group that can never be trained."""
        trainer, space = self.peers.trainer, self.space
        if space is None:
            if trainer is not None and len(group) > trainer.batch_size:
                raise RefusedRequest(
                    422,
                    f"the group has {len(group)} members, and a batch {trainer.batch_size}: no batch can hold it",
                    "Make groups smaller, or let the trainer register with a larger batch_size.",
                )
            return
        longest, highest = max(map(len, group.tokens)), max(map(max, group.tokens))
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
    def _transaction(self) -> Generator[Peers]:
        """Groups, and the copy of `peers` that is given, change together or not at all."""
        with self._lock, self._errors():
            self._database.execute("begin immediate")
            peers = self.peers.model_copy(deep=True)
            try:
                yield peers
                if peers != self.peers:
                    self._database.execute("insert or replace into peers values (0, ?)", (peers.model_dump_json(),))
                self._database.execute("commit")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("rollback")
                raise
            self.peers = peers

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
