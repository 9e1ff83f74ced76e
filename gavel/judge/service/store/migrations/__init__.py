"""Alembic's revisions of the database, applied by migrate.py when the service starts."""
