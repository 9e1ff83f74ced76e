"""The revisions make the tables that the code uses."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from gavel.judge.service.errors import ServiceError
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.migrate import heads
from gavel.judge.service.store.tables import metadata


def test_there_is_one_newest_revision():
    assert len(heads()) == 1


def test_the_revisions_make_the_tables_of_the_code(database_url: str):
    database = Database.open(database_url)
    try:
        assert database.read_now(lambda c: compare_metadata(MigrationContext.configure(c), metadata)) == []
    finally:
        database.close()


def test_a_database_of_a_newer_version_is_refused(database_url: str):
    database = Database.open(database_url)
    newer = sa.text("UPDATE alembic_version SET version_num = '9999'")
    database.submit(lambda connection: connection.execute(newer)).result()
    database.close()
    with pytest.raises(ServiceError, match="another version of Gavel"):
        Database.open(database_url)
