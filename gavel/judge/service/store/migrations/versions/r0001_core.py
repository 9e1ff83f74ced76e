"""Judgements, replies and claims."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "judgements",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False, comment="The API key that asked; empty without keys."),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("request_hash", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("judge", sa.Text, nullable=False),
        sa.Column("members", sa.Integer, nullable=False),
        sa.Column("retain", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Double),
        sa.Column("payload", sa.LargeBinary, comment="The request; none once it is erased."),
        sa.Column("result", sa.LargeBinary, comment="The judgement; none until it is finished."),
        sa.Column("lease_owner", sa.Text),
        sa.Column("lease_until", sa.Double),
        sa.Column("leases", sa.Integer, nullable=False, comment="How often a process has begun to judge it."),
        sa.PrimaryKeyConstraint("id", name="pk_judgements"),
    )
    has_key, unfinished = sa.text("idempotency_key IS NOT NULL"), sa.text("finished_at IS NULL")
    op.create_index(
        "uq_judgements_idempotency",
        "judgements",
        ["key_id", "project", "idempotency_key"],
        unique=True,
        sqlite_where=has_key,
        postgresql_where=has_key,
    )
    op.create_index(
        "ix_judgements_unfinished", "judgements", ["id"], sqlite_where=unfinished, postgresql_where=unfinished
    )
    op.create_index("ix_judgements_project", "judgements", ["project", "id"])
    op.create_table(
        "replies",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("text_hash", sa.Text, nullable=False),
        sa.Column("messages_key", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("question", sa.LargeBinary, nullable=False, comment="Parameters, schema and messages."),
        sa.Column("text", sa.LargeBinary, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Double),
        sa.Column("finish_reason", sa.Text, nullable=False),
        sa.Column("served_by", sa.Text, nullable=False),
        sa.Column("replied_at", sa.Double, nullable=False),
        sa.Column("repaired_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replies"),
        sa.UniqueConstraint("key", "text_hash", name="uq_replies_key_text_hash"),
    )
    op.create_index("ix_replies_messages_key", "replies", ["messages_key"])
    op.create_index("ix_replies_replied_at", "replies", ["replied_at"])
    op.create_table(
        "claims",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("beats", sa.Integer, nullable=False),
        sa.Column("renewed_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_claims"),
    )


def downgrade() -> None:
    for table in ("claims", "replies", "judgements"):
        op.drop_table(table)
