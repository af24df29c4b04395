"""Conversations and their turns."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("tenant", sa.String(200), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("window_from", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_index("conversations_by_tenant", "conversations", ["tenant", "updated_at"])
    op.create_table(
        "turns",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column(
            "conversation_id", sa.String(40), sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("question", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("key", sa.String(200)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("response", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.UniqueConstraint("conversation_id", "position", name="turns_by_position"),
        sa.UniqueConstraint("conversation_id", "key", name="turns_by_key"),
    )
    running = sa.text("status = 'running'")
    op.create_index(
        "turns_one_running", "turns", ["conversation_id"], unique=True, sqlite_where=running, postgresql_where=running
    )


def downgrade() -> None:
    op.drop_table("turns")
    op.drop_table("conversations")
