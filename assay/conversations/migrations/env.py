"""Alembic's entry: it runs inside the store's own connection and transaction."""

from alembic import context

from assay.conversations.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
