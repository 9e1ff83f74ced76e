"""API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("token_hash", sa.Text, nullable=False, comment="SHA-256; the token itself is nowhere."),
        sa.Column("scope", sa.Text, nullable=False, comment="What it may do, as JSON."),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.Column("spent_usd", sa.Double, nullable=False, comment="Of judgements whose cost is known."),
        sa.Column("unpriced_groups", sa.Integer, nullable=False, comment="Judgements whose cost is not known."),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )


def downgrade() -> None:
    op.drop_table("keys")
