"""The clock of a database, in SQL."""

import time

import sqlalchemy as sa

from gavel.judge.service.store.database import Database
from gavel.judge.service.store.database_time import database_time


async def test_it_is_unix_seconds_on_both_databases(database_url: str):
    database = Database.open(database_url)
    before = time.time()
    now = await database.read(lambda connection: connection.execute(sa.select(database_time())).scalar_one())
    database.close()
    assert before - 0.01 <= now <= time.time() + 0.01  # SQLite gives milliseconds; both run on this machine


async def test_seconds_that_are_null_make_a_time_that_is_null(database_url: str):
    database = Database.open(database_url)
    later = sa.select(database_time() + sa.bindparam("seconds", type_=sa.Double))
    none = await database.read(lambda connection: connection.execute(later, {"seconds": None}).scalar_one())
    soon = await database.read(lambda connection: connection.execute(later, {"seconds": 5.0}).scalar_one())
    database.close()
    assert none is None
    assert 4 < soon - time.time() < 6
