"""Groups whose members arrive one by one, in the database.

A member is committed before it is acknowledged. The transaction that brings the last one, or finds the deadline over,
closes the group: its members become the request of a judgement, sorted by id, whatever order they arrived in.
"""

import json
import math
import time
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gavel.judge.service.errors import (
    GroupClosedError,
    GroupDiffersError,
    GroupFullError,
    GroupTooLargeError,
    MemberDiffersError,
    ServiceError,
)
from gavel.judge.service.schemas.group_record import GroupRecord, NewMember
from gavel.judge.service.schemas.judgement_record import NewJudgement
from gavel.judge.service.schemas.stored_verdict import Verdict
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.database_time import database_time
from gavel.judge.service.store.judgement_rows import columns_of, decompress, outcome_columns
from gavel.judge.service.store.judgement_store import FINISHED, WORK
from gavel.judge.service.store.key_store import refusal_of_group
from gavel.judge.service.store.notices import notify
from gavel.judge.service.store.tables import groups, judgements, members
from gavel.judge.service.store.time_ordered_ids import new_id

_g, _m, _j = groups.c, members.c, judgements.c
_IS_OPEN = _g.closed_at.is_(None)
# Statements of every member are made once: making one takes longer than running it.
_NEWEST = (
    sa.select(groups)
    .where(
        _g.key_id == sa.bindparam("of_key"), _g.project == sa.bindparam("of_project"), _g.name == sa.bindparam("named")
    )
    .order_by(_g.round.desc())
    .limit(1)
    .with_for_update()
)
_BEGIN = {
    "sqlite": sqlite.insert(groups).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(groups).on_conflict_do_nothing(),
}
_MEMBER = sa.select(_m.content_hash).where(_m.group_id == sa.bindparam("of_group"), _m.id == sa.bindparam("member"))
_INSERT_MEMBER = sa.insert(members)
_ARRIVED = (
    sa.update(groups)
    .where(_g.id == sa.bindparam("of_group"))
    .values(arrived=_g.arrived + 1, size=_g.size + sa.bindparam("more"))
    .returning(*groups.c)
)
_OF_GROUP = sa.select(_m.id, _m.payload).where(_m.group_id == sa.bindparam("of_group"))
_CLOSE = sa.update(groups).where(_g.id == sa.bindparam("of_group"))
_EMPTY_MEMBERS = sa.update(members).where(_m.group_id == sa.bindparam("of_group")).values(payload=None)
_JUDGEMENT = sa.insert(judgements)
_HAS_DUE = sa.select(_g.id).where(_IS_OPEN, _g.deadline_at <= database_time()).limit(1)
_CLOSED_AT_ONCE = 100
_JUDGED_AT = sa.select(_j.finished_at).where(_j.id == sa.bindparam("of_group"))
_NO_OPTIONS = b"{}"
_REPLAY_SECONDS = 60.0
"""That a judged round still answers a member that comes again, as after a lost answer. Later the member begins another
round: the same text of a later epoch would get a score relative to other attempts than its own group's."""


class GroupStore:
    """The groups of a database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def join(self, new: NewMember) -> GroupRecord:
        """Stores a member, once; the group as it stands then. Raises `GroupConflictError`, `GroupTooLargeError`."""
        joined = await self.database.write(lambda connection: _join(connection, new), f"group {new.group}")
        if isinstance(joined, ServiceError):  # raised in the transaction it would end those of others
            raise joined
        return joined

    async def find(self, key_id: str, project: str, name: str, member: str) -> GroupRecord | None:
        """The newest group of this name that has the member."""
        query = (
            sa.select(groups)
            .join(members, _m.group_id == _g.id)
            .where(_g.key_id == key_id, _g.project == project, _g.name == name, _m.id == member)
            .order_by(_g.round.desc())
            .limit(1)
        )

        def work(connection: sa.Connection) -> GroupRecord | None:
            row = connection.execute(query).one_or_none()
            return None if row is None else _record(row)

        return await self.database.read(work)

    async def close_due(self) -> list[str]:
        """Closes groups whose deadline is over; their ids."""
        if await self.database.read(_has_due):
            return await self.database.write(_close_due, "group")
        return []

    async def closed_since(self, seconds: float) -> tuple[float, list[str]]:
        """The database's time now, and the groups that were closed at `seconds` or later."""

        def work(connection: sa.Connection) -> tuple[float, list[str]]:
            now = _now(connection)
            return now, list(connection.execute(sa.select(_g.id).where(_g.closed_at >= seconds)).scalars())

        return await self.database.read(work)

    async def open_group(self, group: str) -> tuple[GroupRecord, list[str]] | None:
        """A group that waits for members, and the ids of those that came; None when there is none of this id."""

        def work(connection: sa.Connection) -> tuple[GroupRecord, list[str]] | None:
            row = connection.execute(sa.select(groups).where(_g.id == group, _IS_OPEN)).one_or_none()
            came = connection.execute(sa.select(_m.id).where(_m.group_id == group).order_by(_m.id)).scalars()
            return None if row is None else (_record(row), list(came))

        return await self.database.read(work)

    async def waiting(self, projects: Collection[str] | None, limit: int) -> list[GroupRecord]:
        """Groups of these projects (None = all) that wait for members, the earliest deadline first."""
        query = sa.select(groups).where(_IS_OPEN).order_by(_g.deadline_at).limit(limit)
        if projects is not None:
            query = query.where(_g.project.in_(sorted(projects)))
        return await self.database.read(lambda connection: [_record(row) for row in connection.execute(query)])

    async def open_groups(self) -> int:
        """Number of groups that wait for members."""
        query = sa.select(sa.func.count()).select_from(groups).where(_IS_OPEN)
        return await self.database.read(lambda connection: connection.execute(query).scalar_one())


def _join(connection: sa.Connection, new: NewMember) -> GroupRecord | ServiceError:
    now = _now(connection)
    row = _newest(connection, new)
    if row is None or (new.begins_rounds and _is_over(connection, row, new, now)):
        refusal = new.no_more_groups or refusal_of_group(connection, new.key_id, new.scope)
        if refusal is not None:
            return refusal
        _begin(connection, new, 0 if row is None else row.round + 1, now)
        row = _newest(connection, new)
        assert row is not None
    if row.settings_hash != new.settings_hash:
        return GroupDiffersError(
            f"the group {new.group!r} was begun with other settings: {', '.join(_differences(row, new))}.",
            "All members of a group name the same expected, deadline, rubric, criteria, reference and judge; "
            "give another group a name of its own.",
        )
    known = _known(connection, row.id, new.member)
    if known is not None:
        if known.content_hash != new.content_hash:
            return MemberDiffersError(
                f"the group {new.group!r} has another member {new.member!r} already.",
                "Give each member an id of its own; send the same body when you try again.",
            )
        _judge_again(connection, row.id)
        return _record(row)
    if row.closed_at is None and row.deadline_at <= now and row.arrived:
        _close(connection, row, now)
        row = _newest(connection, new)
        assert row is not None
    if row.closed_at is not None and row.arrived >= row.expected:
        return GroupFullError(
            f"the group {new.group!r} has its {row.expected} members already.",
            "Give each group a name of its own, such as the step and the task.",
        )
    if row.closed_at is not None:
        return GroupClosedError(
            f"the deadline of the group {new.group!r} was over when {new.member!r} came.",
            "Send members earlier, or give all of them a longer deadline_seconds.",
        )
    if row.size + new.size > new.max_size:
        return GroupTooLargeError(
            f"the members of the group {new.group!r} have more than {new.max_size:,} bytes.",
            "Send smaller members, or raise the service's setting limits.body_bytes.",
        )
    values = {"group_id": row.id, "id": new.member, "content_hash": new.content_hash, "payload": new.payload}
    connection.execute(_INSERT_MEMBER, values)
    row = connection.execute(_ARRIVED, {"of_group": row.id, "more": new.size}).one()
    if row.arrived == row.expected:
        _close(connection, row, now)
        return _record(row, now)
    return _record(row)


def _newest(connection: sa.Connection, new: NewMember) -> sa.Row[tuple[object, ...]] | None:
    name = {"of_key": new.key_id, "of_project": new.project, "named": new.group}
    return connection.execute(_NEWEST, name).one_or_none()


def _is_over(connection: sa.Connection, row: sa.Row[tuple[object, ...]], new: NewMember, now: float) -> bool:
    """Whether the round is closed, and not asked for once more."""
    if row.closed_at is None and row.deadline_at <= now:
        _close(connection, row, now)
    elif row.closed_at is None:
        return False
    known = _known(connection, row.id, new.member)
    if known is None or known.content_hash != new.content_hash:
        return True
    judged_at = connection.execute(_JUDGED_AT, {"of_group": row.id}).scalar_one_or_none()
    return judged_at is not None and judged_at < now - _REPLAY_SECONDS


def _begin(connection: sa.Connection, new: NewMember, number: int, now: float) -> None:
    values = {
        "id": new_id(),
        "key_id": new.key_id,
        "project": new.project,
        "name": new.group,
        "round": number,
        "expected": new.expected,
        "arrived": 0,
        "size": 0,
        "settings_hash": new.settings_hash,
        "options": new.options,
        "judge": new.judge,
        "retain": new.retain,
        "on_deadline": new.on_deadline,
        "created_at": now,
        "deadline_at": now + new.deadline_seconds,
    }
    connection.execute(_BEGIN[connection.dialect.name], values)


def _differences(row: sa.Row[tuple[object, ...]], new: NewMember) -> list[str]:
    """What a member says otherwise than the first one of its group."""
    found = [f"expected ({row.expected}, not {new.expected})"] if row.expected != new.expected else []
    if row.on_deadline != new.on_deadline:
        found.append("on_deadline")
    if not math.isclose(row.deadline_at - row.created_at, new.deadline_seconds, abs_tol=0.01):
        found.append("deadline_seconds")
    if row.options != _NO_OPTIONS or row.retain:  # else they may be erased
        first, other = json.loads(row.options), json.loads(new.options)
        found += sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name))
    return found or ["how it is judged"]


def _known(connection: sa.Connection, group: str, member: str) -> sa.Row[tuple[str]] | None:
    return connection.execute(_MEMBER, {"of_group": group, "member": member}).one_or_none()


def _judge_again(connection: sa.Connection, group: str) -> None:
    """Queues a judgement again that failed, as its members are asked for again."""
    failed = sa.update(judgements).where(_j.id == group, _j.status == "failed", _j.payload.is_not(None))
    if connection.execute(failed.values(status="queued", finished_at=None, result=None, leases=0)).rowcount:
        notify(connection, WORK)


def _has_due(connection: sa.Connection) -> bool:
    return connection.execute(_HAS_DUE).first() is not None


def _close_due(connection: sa.Connection) -> list[str]:
    now = _now(connection)
    due = sa.select(groups).where(_IS_OPEN, _g.deadline_at <= now).order_by(_g.deadline_at).limit(_CLOSED_AT_ONCE)
    rows = connection.execute(due.with_for_update(skip_locked=True)).all()
    for row in rows:
        _close(connection, row, now)
    return [row.id for row in rows]


def _close(connection: sa.Connection, row: sa.Row[tuple[object, ...]], now: float) -> None:
    """Makes the members that came a judgement, which waits for a worker, or is finished without scores."""
    group = {"of_group": row.id}
    came = sorted(connection.execute(_OF_GROUP, group), key=lambda member: member.id)
    left = {} if row.retain else {"options": _NO_OPTIONS}  # they may hold the task's reference
    connection.execute(_CLOSE, {**group, "closed_at": now, **left})
    connection.execute(_EMPTY_MEMBERS, group)
    new = NewJudgement(
        id=row.id,
        project=row.project,
        key_id=row.key_id,
        judge=row.judge,
        members=len(came),
        payload=_request([decompress(member.payload) for member in came], row.options),
        created_at=row.created_at,
        retain=row.retain,
    )
    values = {**columns_of(new), "status": "queued", "leases": 0}
    if row.on_deadline == "unscored" and row.arrived < row.expected:
        reason = f"only {row.arrived} of {row.expected} members came before the group's deadline"
        values |= outcome_columns(Verdict.unscored([member.id for member in came], reason), time.time())
        if not row.retain:
            values["payload"] = None
    connection.execute(_JUDGEMENT, values)
    if "finished_at" in values:
        notify(connection, FINISHED, row.id)
    else:
        notify(connection, WORK)


def _request(trajectories: Sequence[bytes], options: bytes) -> bytes:
    """The `ScoreRequest` of these trajectories and options, as JSON."""
    rest = b"," + options[1:] if options != _NO_OPTIONS else b"}"
    return b'{"trajectories":[' + b",".join(trajectories) + b"]" + rest


def _record(row: sa.Row[tuple[object, ...]], closed_at: float | None = None) -> GroupRecord:
    return GroupRecord(
        id=row.id,
        name=row.name,
        project=row.project,
        key_id=row.key_id,
        expected=row.expected,
        arrived=row.arrived,
        deadline_at=row.deadline_at,
        closed_at=closed_at or row.closed_at,
    )


def _now(connection: sa.Connection) -> float:
    """Unix seconds, by the clock that all processes share."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return connection.execute(sa.select(database_time())).scalar_one()
