"""The tables. The database itself holds that a conversation has one running turn at most, and a key one turn."""

import sqlalchemy as sa

METADATA = sa.MetaData()

CONVERSATIONS = sa.Table(
    "conversations",
    METADATA,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("tenant", sa.String(200), nullable=False),
    sa.Column("title", sa.String(200), nullable=False),
    sa.Column("window_from", sa.Integer, nullable=False, server_default="0"),  # position of the window's first turn
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Index("conversations_by_tenant", "tenant", "updated_at"),
)

TURNS = sa.Table(
    "turns",
    METADATA,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("conversation_id", sa.String(40), sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("key", sa.String(200)),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("response", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column(
        "lease_until", sa.BigInteger, nullable=False
    ),  # a running turn that was not renewed by then has no replica
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.UniqueConstraint("conversation_id", "position", name="turns_by_position"),
    sa.UniqueConstraint("conversation_id", "key", name="turns_by_key"),
)
ANSWERS = sa.Table(
    "answers",
    METADATA,
    sa.Column("seq", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("id", sa.String(40), nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),  # seconds since 1970
    sa.Column("record", sa.LargeBinary, nullable=False),
    sa.Index("answers_by_time", "at"),
)

RUNNING = sa.Index(
    "turns_one_running",
    TURNS.c.conversation_id,
    unique=True,
    sqlite_where=TURNS.c.status == "running",
    postgresql_where=TURNS.c.status == "running",
)
