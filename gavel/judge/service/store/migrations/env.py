"""Runs the revisions in the transaction of the connection that migrate.py gives."""

from alembic import context

from gavel.judge.service.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
