"""Databases for the tests of the service: an SQLite file, and a real PostgreSQL where there is one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.judge.service.store.database import Database
from tests.judge.service.postgresql import Cluster, binaries


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Cluster]:
    """A server that the tests of this session share."""
    if (programs := binaries()) is None:
        pytest.skip("there is no PostgreSQL server on this machine: apt-get install postgresql")
    cluster = Cluster(programs)
    yield cluster
    cluster.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "service.sqlite")
    return request.getfixturevalue("postgresql").database()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database.open(database_url)
    yield opened
    opened.close()
