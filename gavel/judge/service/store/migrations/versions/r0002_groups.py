"""Groups whose members arrive one by one."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.String(36), nullable=False, comment="Also that of its judgement, once there is one."),
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
        sa.Column("retain", sa.Boolean, nullable=False),
        sa.Column("on_deadline", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("deadline_at", sa.Double, nullable=False),
        sa.Column("closed_at", sa.Double, comment="When it was complete, or its deadline over."),
        sa.PrimaryKeyConstraint("id", name="pk_groups"),
        sa.UniqueConstraint("key_id", "project", "name", "round", name="uq_groups_key_id_project_name_round"),
    )
    is_open = sa.text("closed_at IS NULL")
    op.create_index("ix_groups_open", "groups", ["deadline_at"], sqlite_where=is_open, postgresql_where=is_open)
    op.create_index("ix_groups_closed_at", "groups", ["closed_at"])
    op.create_table(
        "members",
        sa.Column("group_id", sa.String(36), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, comment="The trajectory; none once the group is closed."),
        sa.PrimaryKeyConstraint("group_id", "id", name="pk_members"),
    )


def downgrade() -> None:
    for table in ("members", "groups"):
        op.drop_table(table)
