"""The tables: judgements, the judge models' replies, open groups, the service's processes,
and API keys.

A new database gets them with their version number; another version is rejected. Transcripts and replies are stored as
bytes: JSON compressed with zstandard. Times are Unix seconds, but for the deadlines of groups.
"""

import threading
from typing import Any

import sqlalchemy as sa
import zstandard

from gavel.judge.service.errors import ServiceError
from gavel.judge.service.schemas import KeyScope, Verdict

VERSION = 4
_LOCK = 0x6761_7665_6C00
"""Key of PostgreSQL's advisory lock; an SQLite transaction needs none."""
_LEVEL = 1


class _Contexts(threading.local):
    """Contexts of zstandard, which threads cannot share; making one takes as long as compressing a reply."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_contexts = _Contexts()


class _Packed(sa.TypeDecorator[Any]):
    """Bytes, a text (also with half of a surrogate pair) or a verdict, stored as compressed bytes."""

    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, kind: type[bytes | str | Verdict] = bytes) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: bytes | str | Verdict | None, dialect: sa.Dialect) -> bytes | None:
        if isinstance(value, Verdict):
            value = value.model_dump_json(exclude_defaults=True)
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        return None if value is None else _contexts.compress(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        value = _contexts.decompress(value)
        if self.kind is Verdict:
            return Verdict.model_validate_json(value)
        return value.decode("utf-8", "surrogatepass") if self.kind is str else value


class _Scope(sa.TypeDecorator[KeyScope]):
    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: KeyScope | None, dialect: sa.Dialect) -> str | None:
        return value and value.model_dump_json(exclude_defaults=True, include=set(KeyScope.model_fields))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> KeyScope | None:
        return None if value is None else KeyScope.model_validate_json(value)


metadata = sa.MetaData()

judgements = sa.Table(
    "judgements",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False, comment="The API key that asked; empty without keys."),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("judge", sa.Text, nullable=False),
    sa.Column("members", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("finished_at", sa.Double),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("cost_usd", sa.Double),
    sa.Column("payload", _Packed, nullable=False, comment="The request."),
    sa.Column("result", _Packed(Verdict), comment="The judgement; none until it is finished."),
    sa.Column("lease_owner", sa.Text, comment="The process that judges it; see leases.py."),
    sa.Column("leases", sa.Integer, nullable=False, comment="How often a process has begun to judge it."),
    sa.Column("traceparent", sa.Text, comment="W3C trace context of the request."),
)
sa.Index(
    "uq_judgements_idempotency",
    judgements.c.key_id,
    judgements.c.project,
    judgements.c.idempotency_key,
    unique=True,
    sqlite_where=judgements.c.idempotency_key.is_not(None),
    postgresql_where=judgements.c.idempotency_key.is_not(None),
)
sa.Index(
    "ix_judgements_unfinished",
    judgements.c.id,
    sqlite_where=judgements.c.finished_at.is_(None),
    postgresql_where=judgements.c.finished_at.is_(None),
)
sa.Index("ix_judgements_project", judgements.c.project, judgements.c.id)

replies = sa.Table(
    "replies",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("text_hash", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("text", _Packed(str), nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("cost_usd", sa.Double),
    sa.Column("finish_reason", sa.Text, nullable=False),
    sa.Column("served_by", sa.Text, nullable=False),
    sa.Column("replied_at", sa.Double, nullable=False),
    sa.Column("repaired_by", sa.Text, nullable=False),
    sa.UniqueConstraint("key", "text_hash"),
)
sa.Index("ix_replies_replied_at", replies.c.replied_at)

groups = sa.Table(
    "groups",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True, comment="Also that of its judgement, once there is one."),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("round", sa.Integer, nullable=False, comment="From 0; wires whose names come again count up."),
    sa.Column("expected", sa.Integer, nullable=False),
    sa.Column("arrived", sa.Integer, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False, comment="Bytes of its members."),
    sa.Column("settings_hash", sa.Text, nullable=False),
    sa.Column("options", sa.LargeBinary, nullable=False, comment="How it is judged, as JSON."),
    sa.Column("judge", sa.Text, nullable=False),
    sa.Column("on_deadline", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("deadline_seconds", sa.Double, nullable=False, comment="From its first member."),
    sa.Column("clock", sa.Text, nullable=False, comment="The clock that due_at is of: a boot of a machine."),
    sa.Column("due_at", sa.Double, nullable=False, comment="Seconds of that clock at which its deadline is over."),
    sa.Column("seconds_left", sa.Double, nullable=False, comment="As of the last look; for another clock."),
    sa.Column("closed_at", sa.Double, comment="When it was complete, or its deadline over."),
    sa.UniqueConstraint("key_id", "project", "name", "round"),
)
sa.Index(
    "ix_groups_open",
    groups.c.clock,
    groups.c.due_at,
    sqlite_where=groups.c.closed_at.is_(None),
    postgresql_where=groups.c.closed_at.is_(None),
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("group_id", sa.String(36), primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("payload", _Packed, comment="The trajectory; none once the group is closed."),
)

processes = sa.Table(
    "processes",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("clock", sa.Text, nullable=False, comment="As of groups."),
    sa.Column("beats", sa.BigInteger, nullable=False, comment="Grows while the process lives."),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("token_hash", sa.Text, nullable=False, comment="SHA-256; the token itself is nowhere."),
    sa.Column("scope", _Scope, nullable=False, comment="What it may do, as JSON."),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("revoked_at", sa.Double),
    sa.Column("spent_usd", sa.Double, nullable=False, comment="Of judgements whose cost is known."),
    sa.Column("unpriced_groups", sa.Integer, nullable=False, comment="Judgements whose cost is not known."),
)

_schema = sa.Table("gavel_schema", metadata, sa.Column("version", sa.Integer, primary_key=True))


def create_tables(connection: sa.Connection) -> None:
    """Creates the tables in an empty database, once across processes. Raises `ServiceError` for a database of another
    version."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    known = sa.inspect(connection)
    if not known.has_table(_schema.name) and not known.has_table(judgements.name):
        metadata.create_all(connection)
        connection.execute(sa.insert(_schema).values(version=VERSION))
        return
    found = read_version(connection) if known.has_table(_schema.name) else None
    if found != VERSION:
        raise ServiceError(
            f"the database has tables of the version {found or 'before 1'}, and this version of Gavel has {VERSION}.",
            "Install the version of Gavel that wrote it, or name another database.",
        )


def read_version(connection: sa.Connection) -> int | None:
    """The version of the database's tables."""
    return connection.execute(sa.select(_schema.c.version)).scalar()


def write_version(connection: sa.Connection) -> None:
    """Rewrites the version: fails on a database that cannot be written."""
    connection.execute(sa.update(_schema).values(version=VERSION)).close()
