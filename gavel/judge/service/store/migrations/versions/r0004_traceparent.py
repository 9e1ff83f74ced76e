"""The trace that a judgement belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("judgements", sa.Column("traceparent", sa.Text, comment="W3C trace context of the request."))


def downgrade() -> None:
    op.drop_column("judgements", "traceparent")
