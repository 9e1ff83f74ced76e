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
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

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


class EnvIdentifier(BaseModel):
    """The body of `POST /disconnect-env` and of `GET /status-env`."""

    env_id: int


class RegisteredEnv(BaseModel):
    env_id: int
    real_name: str
    registration: EnvRegistration
    connected: bool = True

    @property
    def weight(self) -> float:
        """Relative weight of its sampling."""
        registration = self.registration
        weight = 1.0 if registration.weight is None else registration.weight
        return registration.max_token_length * max(0.0, weight)


def share(env: RegisteredEnv, envs: list[RegisteredEnv]) -> float:
    """The environment's share among the connected ones, at least `LEAST_WEIGHT`."""
    total = sum(each.weight for each in envs if each.connected)
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
create table if not exists envs (env_id integer primary key, body text not null);
create table if not exists facts (name text primary key, value text not null);
"""
_Value = TypeVar("_Value")


class AtroposError(GavelError):
    """An error that is answered with the HTTP status `status`."""

    status: int


class RefusedRequest(AtroposError):
    """A rejected request: a group that can never be trained here, or one that this server does not take."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status


class QueueError(AtroposError):
    """The queue is full, or cannot be read or written."""

    status = 503


class GroupQueue:
    """A queue for several threads of one process."""

    def __init__(self, path: Path, *, most_groups: int = 4096) -> None:
        """`most_groups`: max waiting groups. Raises `QueueError`."""
        self.path = path
        self._most = most_groups
        self._lock = threading.RLock()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = full")
            self._database.execute("pragma locking_mode = exclusive")
            self._database.executescript(_TABLES)
        with self._transaction() as database:
            done = "body is null and received < ?"
            database.execute(f"delete from groups where {done}", (time.time() - _KEPT_SECONDS,))

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @property
    def waiting(self) -> list[Waiting]:
        """The waiting groups that are in no batch, oldest first."""
        rows = self._rows("select id, env_id, size from groups where state = 'waiting' order by id")
        return [Waiting(*row) for row in rows]

    def accept(self, groups: Sequence[AtroposGroup]) -> list[bool]:
        """Stores all groups, or none; returns whether each is new. They are on disk when this returns.

        Raises `QueueError`, also where they would be more than may wait.
        """
        made = [_encoded(group) for group in groups]
        now, seen = time.time(), set[bytes]()
        is_new: list[bool] = []
        with self._transaction() as database:
            step = self.step
            for group, (digest, body) in zip(groups, made, strict=True):
                query = "select 1 from groups where digest = ? and received > ? limit 1"
                is_new.append(digest in seen or not self._rows(query, digest, now - _AGAIN_SECONDS))
                seen.add(digest)  # two equal groups in one request count as two
                if is_new[-1]:
                    row = (group.env_id, len(group), digest, now, step, "waiting", body)
                    columns = "env_id, size, digest, received, at_step, state, body"
                    database.execute(f"insert into groups ({columns}) values (?, ?, ?, ?, ?, ?, ?)", row)
            ((waiting,),) = self._rows("select count(*) from groups where state = 'waiting'")
            if any(is_new) and waiting > self._most:
                raise QueueError(
                    f"{waiting - sum(is_new):,} groups wait already, and {self._most:,} may",
                    "Send it again when the learner has taken some, or raise --max-waiting.",
                )
        return is_new

    def read(self, ids: Sequence[int]) -> list[tuple[AtroposGroup, int]]:
        """Stored groups, each with the step at which it was accepted."""
        found: list[tuple[AtroposGroup, int]] = []
        for number in ids:
            ((body, step),) = self._rows("select body, at_step from groups where id = ?", number)
            found.append((AtroposGroup.model_validate_json(zlib.decompress(body)), step))
        return found

    def newest(self) -> AtroposGroup | None:
        """The last accepted group, while its body is kept."""
        rows = self._rows("select body from groups where body is not null order by id desc limit 1")
        return AtroposGroup.model_validate_json(zlib.decompress(rows[0][0])) if rows else None

    def trained(self, ids: Sequence[int], step: int) -> None:
        """Marks groups as trained in the checkpoint of `step`. Ids that are not waiting are ignored."""
        with self._transaction() as database:
            change = "update groups set state = 'trained', batch = ?, body = null where id = ? and state = 'waiting'"
            database.executemany(change, [(step, number) for number in ids])
            self._set("step", step)

    def lend(self, ids: Sequence[int], step: int) -> int:
        """Puts groups into the trainer's batch for `step`; returns the batch's number."""
        with self._transaction() as database:
            batch = (self._fact("batch", int) or 0) + 1
            change = "update groups set state = 'lent', batch = ? where id = ? and state = 'waiting'"
            database.executemany(change, [(batch, number) for number in ids])
            self._set("step", step)
            self._set("batch", batch)
        return batch

    def lent(self) -> tuple[int, list[int]] | None:
        """The oldest undelivered batch, with the ids of its groups."""
        rows = self._rows("select batch, id from groups where state = 'lent' order by batch, id")
        return (rows[0][0], [number for batch, number in rows if batch == rows[0][0]]) if rows else None

    def delivered(self, batch: int) -> None:
        """Marks a batch as delivered to the trainer."""
        with self._transaction() as database:
            database.execute("update groups set state = 'delivered', body = null where batch = ?", (batch,))

    def reset(self) -> None:
        """Deletes waiting and lent groups, environments and the trainer."""
        with self._transaction() as database:
            database.execute("update groups set state = 'reset', body = null where state in ('waiting', 'lent')")
            database.execute("delete from envs")
            database.execute("delete from facts where name != 'batch'")

    @property
    def registration(self) -> TrainerRegistration | None:
        """The trainer's registration, if any."""
        return self._fact("trainer", TrainerRegistration.model_validate_json)

    def register(self, registration: TrainerRegistration) -> None:
        """Stores the registration; the step is then its starting step."""
        with self._transaction():
            self._set("trainer", registration.model_dump_json())
            self._set("step", registration.starting_step)

    @property
    def started(self) -> bool:
        """Whether a trainer has requested a batch: environments register only then."""
        return self._fact("started", str) is not None

    def start(self) -> None:
        with self._transaction():
            self._set("started", "yes")

    @property
    def step(self) -> int:
        """Steps that the trainer has taken, or batches that it received."""
        return self._fact("step", int) or 0

    @property
    def envs(self) -> list[RegisteredEnv]:
        return [
            RegisteredEnv.model_validate_json(row[0]) for row in self._rows("select body from envs order by env_id")
        ]

    def register_env(self, registration: EnvRegistration) -> RegisteredEnv:
        """Registers an environment under a unique number and name."""
        with self._transaction() as database:
            envs, name = self.envs, registration.desired_name or "env"
            number = max((env.env_id + 1 for env in envs), default=0)
            others = [env.real_name.rpartition("_")[0] for env in envs]
            env = RegisteredEnv(env_id=number, real_name=f"{name}_{others.count(name)}", registration=registration)
            database.execute("insert into envs values (?, ?)", (number, env.model_dump_json()))
        return env

    def disconnect_env(self, env_id: int) -> bool:
        """Disconnects an environment; returns whether it exists."""
        change = "update envs set body = json_set(body, '$.connected', json('false')) where env_id = ?"
        with self._transaction() as database:
            return database.execute(change, (env_id,)).rowcount > 0

    def _fact(self, name: str, read: Callable[[str], _Value]) -> _Value | None:
        rows = self._rows("select value from facts where name = ?", name)
        return read(rows[0][0]) if rows else None

    def _set(self, name: str, value: object) -> None:
        """Sets a value within a transaction."""
        self._database.execute("insert or replace into facts values (?, ?)", (name, str(value)))

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock, self._errors():
            self._database.execute("begin immediate")
            try:
                yield self._database
            except BaseException:
                self._database.execute("rollback")
                raise
            self._database.execute("commit")

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise QueueError(
                f"the queue {self.path} cannot be used: {error}",
                "Make room, or end the other process that uses it; no group that was accepted is lost.",
            ) from error


def _encoded(group: AtroposGroup) -> tuple[bytes, bytes]:
    """The hash of a group's content, and its JSON, compressed."""
    text = group.model_dump_json().encode()
    return hashlib.sha256(text).digest(), zlib.compress(text, 1)


@dataclass(frozen=True, slots=True)
class OwnTrainer:
    """Registration of the server's own learner."""

    registration: TrainerRegistration
    space: TokenSpace


@dataclass(frozen=True, slots=True)
class Lent:
    """A batch that is being sent to a trainer."""

    number: int
    groups: list[AtroposGroup]


class QueueState:
    """A queue and its trainer."""

    def __init__(self, queue: GroupQueue, own: OwnTrainer | None = None) -> None:
        self.queue = queue
        self.own = own
        self._changed = asyncio.Event()
        self._lending = asyncio.Lock()

    @property
    def registration(self) -> TrainerRegistration | None:
        return self.queue.registration if self.own is None else self.own.registration

    @property
    def started(self) -> bool:
        """Whether environments may register."""
        return self.own is not None or self.queue.started

    async def accept(self, groups: Sequence[AtroposGroup]) -> list[bool]:
        """Stores the groups; returns whether each is new. Raises `RefusedRequest`, and as `GroupQueue.accept`
        does."""
        for group in groups:
            self._check(group)
        is_new = await asyncio.to_thread(self.queue.accept, groups)
        self._changed.set()
        self._changed = asyncio.Event()
        return is_new

    async def wait_for_change(self, seconds: float) -> bool:
        """Waits until a group is accepted; returns False at the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def lend(self) -> Lent | None:
        """The next batch for a trainer over HTTP: an undelivered one, else a new one.

        None while too few groups wait. `settle` must be called for the batch: until then no other one is lent. Raises
        `RefusedRequest`.
        """
        self.check_no_own("GET /batch")
        registration = self.queue.registration
        if registration is None:
            return None
        await self._lending.acquire()
        lent = None
        try:
            lent = await asyncio.to_thread(self._lend, registration)
        finally:
            if lent is None:
                self._lending.release()
        return lent

    async def settle(self, lent: Lent, delivered: bool) -> None:
        """Records whether the trainer received the batch; if not, the next request gets it again."""
        try:
            if delivered:
                await asyncio.to_thread(self.queue.delivered, lent.number)
        finally:
            self._lending.release()

    def _lend(self, registration: TrainerRegistration) -> Lent | None:
        queue = self.queue
        if not queue.started:
            queue.start()
        if (known := queue.lent()) is None:
            chosen = choose_exactly(queue.waiting, registration.batch_size)
            if chosen is None:
                return None
            ids = [group.id for group in chosen]
            known = queue.lend(ids, queue.step + 1), ids
        number, ids = known
        return Lent(number, [group for group, _ in queue.read(ids)])

    def check_no_own(self, request: str) -> None:
        """Raises `RefusedRequest` if the server has its own learner."""
        if self.own is not None:
            raise RefusedRequest(
                409,
                f"{request} is refused: this server's own learner takes the batches",
                "Start `gavel serve-atropos` without --model to hand them to another trainer.",
            )

    def _check(self, group: AtroposGroup) -> None:
        registration = self.registration
        if self.own is None:
            if registration is not None and len(group) > registration.batch_size:
                raise RefusedRequest(
                    422,
                    f"the group has {len(group)} members, and a batch {registration.batch_size}: no batch can hold it",
                    "Make groups smaller, or let the trainer register with a larger batch_size.",
                )
            return
        space = self.own.space
        longest = max(map(len, group.tokens))
        if longest > space.max_context:
            raise RefusedRequest(
                422,
                f"a member has {longest:,} tokens, and the learner takes {space.max_context:,}",
                "Set the environment's max_token_length, or raise --max-context.",
            )
        highest = max(map(max, group.tokens))
        if highest >= space.vocabulary:
            raise RefusedRequest(
                422,
                f"a member holds the token {highest}, and the model has {space.vocabulary:,} tokens",
                "Give the environment the tokenizer of the model that is trained (tokenizer_name).",
            )
        if told := group.other_targets():
            raise RefusedRequest(422, told, MASKS)
