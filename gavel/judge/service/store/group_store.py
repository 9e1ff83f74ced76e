"""Groups in the database whose members arrive separately.

A member is committed before it is acknowledged. The transaction that stores the last one, or finds the deadline passed,
closes the group: its members become the request of a judgement, sorted by id, regardless of their order of arrival.
"""

import hashlib
import json
import math
import secrets
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # SQLite has the same ON CONFLICT

from gavel.judge.service.errors import Problem
from gavel.judge.service.schemas import GroupRecord, NewMember, Record, Verdict
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.judgement_store import columns_of, new_id, outcome_columns, refusal_of_group
from gavel.judge.service.store.tables import groups, judgements, members, processes

_g, _m, _j = groups.c, members.c, judgements.c
_IS_OPEN = _g.closed_at.is_(None)
# Statements for members are built once: building one takes longer than running it.
_GROUP = sa.bindparam("of_group", type_=sa.String)
_NEWEST = (
    sa.select(groups)
    .where(_g.key_id == sa.bindparam("of_key"), _g.project == sa.bindparam("of_project"))
    .where(_g.name == sa.bindparam("named"))
    .order_by(_g.round.desc())
    .limit(1)
    .with_for_update()
)
_MEMBER = sa.select(_m.content_hash).where(_m.group_id == _GROUP, _m.id == sa.bindparam("member"))
_ARRIVED = (
    sa.update(groups)
    .where(_g.id == _GROUP)
    .values(arrived=_g.arrived + 1, size=_g.size + sa.bindparam("more"))
    .returning(*groups.c)
)
_CLOSED_AT_ONCE = 100
_REPLAY_SECONDS = 60.0
"""Seconds for which a judged round still answers a repeated member, as after a lost response. Later the member starts
another round: the same text of a later epoch would get a score relative to attempts of another group."""


class DeadlineClock:
    """A monotonic clock for deadlines, shared by all processes of one boot."""

    def __init__(self) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id")
        self.id = boot.read_text().strip() if boot.exists() else secrets.token_hex(16)

    def now(self) -> float:
        """Seconds since the machine started, including sleep if the system reports it."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock)


class GroupStore:
    """The groups of a database."""

    def __init__(self, database: Database, clock: DeadlineClock | None = None) -> None:
        self.database = database
        self._clock = clock or DeadlineClock()

    async def join(self, new: NewMember) -> GroupRecord:
        """Stores a member, once; returns the group's current state. Raises a `ServiceError` for a member that does not
        fit."""
        return await self.database.write(lambda c: _join(c, new, self._clock), f"group {new.group}")

    async def find(self, key_id: str, project: str, name: str, member: str) -> GroupRecord | None:
        """The newest group of this name that contains the member."""
        query = (
            sa.select(groups)
            .join(members, _m.group_id == _g.id)
            .where(_g.key_id == key_id, _g.project == project, _g.name == name, _m.id == member)
            .order_by(_g.round.desc())
            .limit(1)
        )
        rows = await self.database.rows(query)
        return _record(rows[0], self._clock) if rows else None

    async def close_due(self) -> list[str]:
        """Closes groups whose deadline has passed; returns their ids."""
        now = self._clock.now()
        due = sa.select(groups).where(_IS_OPEN, _g.clock == self._clock.id, _g.due_at <= now)
        due = due.order_by(_g.due_at).limit(_CLOSED_AT_ONCE)

        def work(connection: sa.Connection) -> list[str]:
            rows = connection.execute(due.with_for_update(skip_locked=True)).all()
            for row in rows:
                _close(connection, row, self._clock)
            return [row.id for row in rows]

        if await self.database.rows(due.limit(1)):
            return await self.database.write(work, "group")
        return []

    async def keep_time(self) -> None:
        """Stores the remaining time of open groups, and adopts those whose clock no process has any more: they continue
        with the time last stored."""
        now, ours = self._clock.now(), self._clock.id
        lost = sa.and_(_IS_OPEN, _g.clock != ours, _g.clock.not_in(sa.select(processes.c.clock)))

        def work(connection: sa.Connection) -> None:
            kept = sa.update(groups).where(_IS_OPEN, _g.clock == ours)
            connection.execute(kept.values(seconds_left=_g.due_at - now))
            connection.execute(sa.update(groups).where(lost).values(clock=ours, due_at=_g.seconds_left + now))

        if await self.database.rows(sa.select(_g.id).where(_IS_OPEN).limit(1)):
            await self.database.write(work, "group")

    async def project_of_open(self, group: str) -> str | None:
        """The project of an open group; None if there is none of this id."""
        if "\0" in group:  # PostgreSQL rejects a lookup of it
            return None
        rows = await self.database.rows(sa.select(_g.project).where(_g.id == group, _IS_OPEN))
        return rows[0].project if rows else None

    async def still_open(self, ids: Collection[str]) -> set[str]:
        """Those of the ids that are of open groups."""
        return {row.id for row in await self.database.rows(sa.select(_g.id).where(_g.id.in_(list(ids)), _IS_OPEN))}

    async def open_groups(self) -> int:
        """Number of open groups."""
        return (await self.database.rows(sa.select(sa.func.count()).select_from(groups).where(_IS_OPEN)))[0][0]


def _join(connection: sa.Connection, new: NewMember, clock: DeadlineClock) -> GroupRecord:
    row = _newest(connection, new)
    if row is not None and row.closed_at is None and _left(row, clock) <= 0 and row.arrived:
        _close(connection, row, clock)
        row = _newest(connection, new)
    content_hash = hashlib.sha256(new.trajectory).hexdigest()
    if row is None or (new.begins_rounds and _is_over(connection, row, new.request.id, content_hash)):
        refusal = new.no_more_groups or refusal_of_group(connection, new.key_id, new.scope)
        if refusal is not None:
            raise refusal
        _begin(connection, new, 0 if row is None else row.round + 1, clock)
        row = _newest(connection, new)
        assert row is not None
    if row.settings_hash != _settings_hash(new):
        raise Problem(
            409,
            "group-differs",
            f"the group {new.group!r} was begun with other settings: {', '.join(_differences(row, new))}.",
            "All members of a group name the same expected, deadline, rubric, criteria, reference and judge; "
            "give another group a name of its own.",
        )
    member = {"of_group": row.id, "member": new.request.id}
    known = connection.execute(_MEMBER, member).scalar_one_or_none()
    if known is None:
        _check_room(row, new)
        return _insert(connection, row, new, content_hash, clock)
    if known != content_hash:
        raise Problem(
            409,
            "member-differs",
            f"the group {new.group!r} has another member {new.request.id!r} already.",
            "Give each member an id of its own; send the same body when you try again.",
        )
    failed = sa.update(judgements).where(_j.id == row.id, _j.status == "failed")
    connection.execute(failed.values(status="queued", finished_at=None, result=None, leases=0))  # judged once more
    return _record(row, clock)


def _newest(connection: sa.Connection, new: NewMember) -> Any:
    name = {"of_key": new.key_id, "of_project": new.request.project, "named": new.group}
    return connection.execute(_NEWEST, name).one_or_none()


def _is_over(connection: sa.Connection, row: Any, member: str, content_hash: str) -> bool:
    """Whether the round is closed, and not requested again."""
    if row.closed_at is None:
        return False
    if connection.execute(_MEMBER, {"of_group": row.id, "member": member}).scalar_one_or_none() != content_hash:
        return True
    judged_at = connection.execute(sa.select(_j.finished_at).where(_j.id == row.id)).scalar_one_or_none()
    return judged_at is not None and judged_at < time.time() - _REPLAY_SECONDS


def _begin(connection: sa.Connection, new: NewMember, number: int, clock: DeadlineClock) -> None:
    asked, seconds = new.request, new.deadline_seconds
    values = {name: getattr(asked, name) for name in ("project", "expected", "on_deadline")}
    values |= {"key_id": new.key_id, "name": new.group, "judge": new.judge, "options": new.options}
    values |= {"id": new_id(), "round": number, "arrived": 0, "size": 0, "settings_hash": _settings_hash(new)}
    values |= {"deadline_seconds": seconds, "seconds_left": seconds, "created_at": time.time()}
    values |= {"clock": clock.id, "due_at": clock.now() + seconds}
    connection.execute(insert(groups).values(values).on_conflict_do_nothing())


def _settings_hash(new: NewMember) -> str:
    """Hash of all options that members of a group must share."""
    asked = new.request
    same = [asked.expected, asked.deadline_seconds, asked.on_deadline, new.options.decode()]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()


def _differences(row: Any, new: NewMember) -> list[str]:
    """Options in which a member differs from the first one of its group."""
    asked = new.request
    found = [f"expected ({row.expected}, not {asked.expected})"] if row.expected != asked.expected else []
    if row.on_deadline != asked.on_deadline:
        found.append("on_deadline")
    if not math.isclose(row.deadline_seconds, new.deadline_seconds):
        found.append("deadline_seconds")
    first, other = json.loads(row.options), json.loads(new.options)
    return found + sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name))


def _check_room(row: Any, new: NewMember) -> None:
    if row.closed_at is not None and row.arrived >= row.expected:
        raise Problem(
            409,
            "group-full",
            f"the group {new.group!r} has its {row.expected} members already.",
            "Give each group a name of its own, such as the step and the task.",
        )
    if row.closed_at is not None:
        raise Problem(
            409,
            "group-closed",
            f"the deadline of the group {new.group!r} was over when {new.request.id!r} came.",
            "Send members earlier, or give all of them a longer deadline_seconds.",
        )
    if row.size + len(new.trajectory) > new.max_size:
        raise Problem(
            413,
            "group-too-large",
            f"the members of the group {new.group!r} have more than {new.max_size:,} bytes.",
            "Send smaller members, or raise the service's setting limits.body_bytes.",
        )


def _insert(
    connection: sa.Connection, row: Any, new: NewMember, content_hash: str, clock: DeadlineClock
) -> GroupRecord:
    member = {"id": new.request.id, "content_hash": content_hash, "payload": new.trajectory}
    connection.execute(sa.insert(members), {"group_id": row.id, **member})
    row = connection.execute(_ARRIVED, {"of_group": row.id, "more": len(new.trajectory)}).one()
    return _close(connection, row, clock) if row.arrived == row.expected else _record(row, clock)


def _close(connection: sa.Connection, row: Any, clock: DeadlineClock) -> GroupRecord:
    """Turns the arrived members into a judgement, which waits for a worker, or is finished without scores."""
    of_group = _m.group_id == row.id
    came = connection.execute(sa.select(_m.id, _m.payload).where(of_group)).all()
    came = sorted(came, key=lambda member: member.id)  # as Python sorts, whatever the database's collation
    connection.execute(sa.update(groups).where(_g.id == row.id).values(closed_at=time.time()))
    connection.execute(sa.update(members).where(of_group).values(payload=None))
    closed = _record(row, clock, is_open=False)
    trajectories = b",".join(member.payload for member in came)
    rest = b"," + row.options[1:] if row.options != b"{}" else b"}"
    values = columns_of(closed.record, b'{"trajectories":[' + trajectories + b"]" + rest)  # a ScoreRequest
    if row.on_deadline == "unscored" and row.arrived < row.expected:
        reason = f"only {row.arrived} of {row.expected} members came before the group's deadline"
        values |= outcome_columns(Verdict.unscored([member.id for member in came], reason), time.time())
    connection.execute(sa.insert(judgements), values)
    return closed


def _left(row: Any, clock: DeadlineClock) -> float:
    """Seconds until the group's deadline; for another clock, as last stored."""
    return row.due_at - clock.now() if row.clock == clock.id else row.seconds_left


def _record(row: Any, clock: DeadlineClock, is_open: bool = True) -> GroupRecord:
    same = {name: getattr(row, name) for name in ("id", "project", "key_id", "judge", "created_at")}
    status = "open" if is_open and row.closed_at is None else "queued"
    record = Record(**same, status=status, members=row.arrived)
    return GroupRecord(row.name, row.expected, row.arrived, time.time() + _left(row, clock), record)
