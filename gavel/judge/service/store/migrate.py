"""Brings a database's tables to the newest revision, once, whichever process comes first."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from gavel.judge.service.errors import ServiceError

_FOLDER = Path(__file__).with_name("migrations")
_LOCK = 0x6761_7665_6C00
"""Of PostgreSQL's advisory locks; SQLite's transaction is a lock by itself."""


def migrate(connection: sa.Connection) -> None:
    """Applies the missing revisions in the connection's transaction. Raises `ServiceError` for a newer database."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise ServiceError(
            f"the database is of another version of Gavel: {error}.",
            "Install the version that wrote it, or a newer one, or name another database.",
        ) from error


def alembic_config() -> Config:
    """Alembic's configuration for the revisions of this package."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config


def heads() -> list[str]:
    """The newest revisions: one."""
    return list(ScriptDirectory.from_config(alembic_config()).get_heads())
