"""Which process judges what: work is taken under a lease that its owner renews, and that ends when the owner dies.

A dead owner on the same machine is seen at once; another one's work is free when its lease has ended. Processes that
share PostgreSQL take different work (`FOR UPDATE SKIP LOCKED`), and its clock is that of all leases.
"""

from collections.abc import Collection

import sqlalchemy as sa

from gavel.base.processes import is_dead
from gavel.judge.service.schemas.judgement_record import LeasedWork
from gavel.judge.service.store.database_time import database_time
from gavel.judge.service.store.judgement_rows import SUMMARY, decompress, record_of
from gavel.judge.service.store.tables import judgements

_c = judgements.c
_UNFINISHED = _c.finished_at.is_(None)
_IS_FREE = sa.or_(_c.lease_until.is_(None), _c.lease_until < database_time())
_FREE = sa.select(_c.id).where(_UNFINISHED, _IS_FREE)


def has_free_work(connection: sa.Connection) -> bool:
    """Whether there is a judgement that nobody works on."""
    return connection.execute(_FREE.limit(1)).first() is not None


def take(connection: sa.Connection, owner: str, seconds: float, limit: int) -> list[LeasedWork]:
    """Leases up to `limit` judgements that nobody works on, the oldest first."""
    free = _FREE.order_by(_c.id).limit(limit).with_for_update(skip_locked=True)
    ids = connection.execute(free).scalars().all()
    if not ids:
        return []
    leased = (
        sa.update(judgements)
        .where(_c.id.in_(ids))
        .values(status="running", lease_owner=owner, lease_until=database_time() + seconds, leases=_c.leases + 1)
        .returning(*SUMMARY, _c.payload, _c.leases)
    )
    rows = sorted(connection.execute(leased), key=lambda row: row.id)
    return [LeasedWork(record_of(row), decompress(row.payload), row.leases) for row in rows]


def renew(connection: sa.Connection, owner: str, seconds: float, ids: Collection[str]) -> set[str]:
    """Prolongs the owner's leases; gives those of `ids` that are still its own."""
    mine = sa.update(judgements).where(_c.id.in_(list(ids)), _c.lease_owner == owner, _UNFINISHED)
    renewed = mine.values(lease_until=database_time() + seconds).returning(_c.id)
    return set(connection.execute(renewed).scalars())


def give_back(connection: sa.Connection, owner: str) -> None:
    """Ends the owner's leases: its unfinished work is anybody's."""
    free = {"status": "queued", "lease_owner": None, "lease_until": None}
    connection.execute(sa.update(judgements).where(_c.lease_owner == owner, _UNFINISHED).values(free))


def free_the_dead(connection: sa.Connection) -> int:
    """Ends the leases of processes of this machine that run no more; how many owners there were."""
    owners = connection.execute(
        sa.select(_c.lease_owner).distinct().where(_UNFINISHED, _c.lease_owner.is_not(None))
    ).scalars()
    dead = [owner for owner in owners if owner is not None and is_dead(owner)]
    for owner in dead:
        give_back(connection, owner)
    return len(dead)
