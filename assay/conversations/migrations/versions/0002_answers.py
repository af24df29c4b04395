"""Answers that are kept, where several nodes must find them: in PostgreSQL alone."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.create_table(
        "answers",
        sa.Column("seq", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("id", sa.String(40), nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("answers_by_time", "answers", ["at"])


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_table("answers")
