"""Leases: work belongs to one process until it is finished or the process is dead.

Every process counts heartbeats in its row of `processes`. A process that died on this machine is detected at once;
another one is dead if its count did not change for a whole lease, by the observer's monotonic clock, so that no change
of a system clock ends a lease. Processes that share PostgreSQL take different work (`FOR UPDATE SKIP LOCKED`).
"""

import time
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT

from gavel.base.processes import is_dead
from gavel.judge.service.schemas import Record
from gavel.judge.service.store.judgement_store import SUMMARY, record_of
from gavel.judge.service.store.tables import judgements, processes

_c, _p = judgements.c, processes.c
_UNFINISHED = _c.finished_at.is_(None)
_FREE = sa.select(_c.id).where(_UNFINISHED, _c.lease_owner.is_(None))
_GIVEN_BACK = {"status": "queued", "lease_owner": None}


class ProcessWatch:
    """The other processes of a database, as one process sees them."""

    def __init__(self, lease_seconds: float) -> None:
        self._seconds = lease_seconds
        self._seen: dict[str, tuple[int, float]] = {}
        """The heartbeats of each owner, and when they were first seen."""
        self._looked_at = 0.0

    def dead(self, beats: Mapping[str, int]) -> list[str]:
        """The owners with these heartbeats that are dead. A watch that was itself interrupted starts over."""
        now = time.monotonic()
        if now - self._looked_at > self._seconds / 2:
            self._seen.clear()
        self._looked_at = now
        seen = {owner: self._seen.get(owner, (-1, now)) for owner in beats}
        self._seen = {o: seen[o] if seen[o][0] == count else (count, now) for o, count in beats.items()}
        return [owner for owner, (_, since) in self._seen.items() if now - since > self._seconds or is_dead(owner)]


def beats(connection: sa.Connection) -> dict[str, int]:
    """The heartbeats of all processes; 0 for one that has work and no row."""
    owners = sa.select(_c.lease_owner).distinct().where(_UNFINISHED, _c.lease_owner.is_not(None))
    found = {owner: 0 for owner in connection.execute(owners).scalars() if owner is not None}
    return found | {row.owner: row.beats for row in connection.execute(sa.select(processes))}


def beat(connection: sa.Connection, owner: str, clock: str) -> None:
    """Writes a heartbeat."""
    row = insert(processes).values(owner=owner, clock=clock, beats=1)
    connection.execute(row.on_conflict_do_update(index_elements=["owner"], set_={"beats": _p.beats + 1}))


def has_free_work(connection: sa.Connection) -> bool:
    """Whether there is an unleased judgement."""
    return connection.execute(_FREE.limit(1)).first() is not None


def take(
    connection: sa.Connection, owner: str, limit: int, running: Collection[str]
) -> list[tuple[Record, bytes, int]]:
    """Leases up to `limit` unleased judgements, the oldest first, except those that are `running` here.

    Returns each with its request as JSON, and the number of times that a process started it, including this one.
    """
    free = _FREE.where(_c.id.not_in(list(running))).order_by(_c.id).limit(limit).with_for_update(skip_locked=True)
    ids = connection.execute(free).scalars().all()
    if not ids:
        return []
    leased = (
        sa.update(judgements)
        .where(_c.id.in_(ids))
        .values(status="running", lease_owner=owner, leases=_c.leases + 1)
        .returning(*SUMMARY, _c.payload, _c.leases)
    )
    found: Any = connection.execute(leased).all()
    rows: list[Any] = sorted(found, key=lambda row: row.id)
    return [(record_of(row[: len(SUMMARY)]), row.payload, row.leases) for row in rows]


def keep(connection: sa.Connection, owner: str, ids: Collection[str]) -> set[str]:
    """Renews the owner's lost leases on `ids` that nobody has taken; returns those of the `ids` that it holds."""
    lost = sa.update(judgements).where(_c.id.in_(list(ids)), _UNFINISHED, _c.lease_owner.is_(None))
    connection.execute(lost.values(status="running", lease_owner=owner))
    own = sa.select(_c.id).where(_c.id.in_(list(ids)), _UNFINISHED, _c.lease_owner == owner)
    return set(connection.execute(own).scalars())


def end(connection: sa.Connection, owners: Collection[str]) -> None:
    """Ends the leases of these processes: others may take their unfinished work."""
    connection.execute(sa.delete(processes).where(_p.owner.in_(list(owners))))
    connection.execute(sa.update(judgements).where(_c.lease_owner.in_(list(owners)), _UNFINISHED).values(_GIVEN_BACK))
